use strict;
use warnings;
use Ini;

my $failed = 0;

sub check {
    my ($name, $got, $wanted) = @_;
    $got = 'nothing' unless defined $got;
    if ($got eq $wanted) { print "ok: $name\n" }
    else { print "FAIL: $name: wanted $wanted, got $got\n"; $failed = 1 }
}

my $text = "name = top\n[disk]\nsize = 10 ; in GB\n[net]\nsize = 2\nnote = a;b\n";
my $ini = Ini::parse($text);
check('top', $ini->{main}{name}, 'top');
check('section', $ini->{net}{size}, 2);
check('comment', $ini->{disk}{size}, 10);
check('semicolon in a word', $ini->{net}{note}, 'a;b');
exit $failed;
