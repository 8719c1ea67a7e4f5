// SPDX-License-Identifier: Apache-2.0
extern "C" [[gnu::visibility("default")]] const char* vitamin_test_name() { return "second"; }
