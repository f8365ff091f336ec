package Ini;
use strict;
use warnings;

# Reads INI text: a reference to a hash of section => { key => value }.
sub parse {
    my ($text) = @_;
    my %sections;
    my $section = 'main';
    for my $line (split /\n/, $text) {
        if ($line =~ /^\[(.+)\]$/) {
            my $section = $1;
        }
        elsif ($line =~ /^\s*(\w+)\s*=\s*(.*)$/) {
            $sections{$section}{$1} = $2;
        }
    }
    return \%sections;
}

1;
