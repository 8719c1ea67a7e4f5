// SPDX-License-Identifier: Apache-2.0
//
// A shared object that is no policy.
extern "C" __attribute__((visibility("default"))) int not_a_policy() { return 0; }
