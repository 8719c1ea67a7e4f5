// SPDX-License-Identifier: Apache-2.0
//
// The same kernels as a module: a shared object that is loaded at run time.
#include "tests/soft/kernels.h"
