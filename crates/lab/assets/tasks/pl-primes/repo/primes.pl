use strict;
use warnings;

# Prints all primes up to and including LIMIT, one a line, with its index.
my $limit = shift @ARGV;
my @composite;
my $index = 0;
for my $n (2 .. $limit - 1) {
    next if $composite[$n];
    $index++;
    print "$index: $n\n";
    for (my $m = $n * $n; $m <= $limit; $m += $n) { $composite[$m] = 1 }
}
