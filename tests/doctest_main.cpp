// SPDX-License-Identifier: Apache-2.0
//
// The main function of every test program that needs none of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
