// SPDX-License-Identifier: Apache-2.0
//
// linux/kfd_ioctl.h includes this header for the types of the kernel's interface and the macros of
// ioctl numbers, and for nothing of DRM. Debian has it only in libdrm-dev.
#pragma once

#include <linux/ioctl.h>
#include <linux/types.h>
