#!/bin/sh
exec perl -I. test.pl 2>&1
