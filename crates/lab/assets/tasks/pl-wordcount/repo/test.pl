use strict;
use warnings;
use WordCount;

my $failed = 0;

sub check {
    my ($name, $got, $wanted) = @_;
    $got = 'nothing' unless defined $got;
    if ($got eq $wanted) { print "ok: $name\n" }
    else { print "FAIL: $name: wanted $wanted, got $got\n"; $failed = 1 }
}

check('plain', WordCount::count('a b a')->{a}, 2);
check('case', WordCount::count('The the')->{the}, 2);
check('punctuation', WordCount::count('stop, stop. stop')->{stop}, 3);
check('white space', join(',', sort keys %{ WordCount::count(" a\t b\n") }), 'a,b');
exit $failed;
