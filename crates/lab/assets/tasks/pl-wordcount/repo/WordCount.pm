package WordCount;
use strict;
use warnings;

# Counts the words of a text: a reference to a hash of word => count.
sub count {
    my ($text) = @_;
    my %counts;
    $counts{$_}++ for split / /, $text;
    return \%counts;
}

1;
