// SPDX-License-Identifier: Apache-2.0
//
// Entries of the thunk that need no work here, and those that this device does not have. The
// runtime treats the latter as features that are missing.
#include <cstdio>

#include "backends/soft/amdgpu/thunk.h"

namespace {

HSAKMT_STATUS unsupported(const char* what) {
  std::fprintf(stderr, "software AMD GPU: %s is not supported\n", what);
  return HSAKMT_STATUS_NOT_SUPPORTED;
}

}  // namespace

VITAMIN_THUNK hsaKmtSetMemoryPolicy(HSAuint32, HSAuint32, HSAuint32, void*, HSAuint64) {
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtSetTrapHandler(HSAuint32, void*, HSAuint64, void*, HSAuint64) {
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtRuntimeEnable(void*, bool) { return HSAKMT_STATUS_NOT_SUPPORTED; }

VITAMIN_THUNK hsaKmtRuntimeDisable() { return HSAKMT_STATUS_SUCCESS; }

VITAMIN_THUNK hsaKmtGetXNACKMode(HSAint32* enabled) {
  *enabled = 0;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtSetXNACKMode(HSAint32) { return HSAKMT_STATUS_NOT_SUPPORTED; }

VITAMIN_THUNK hsaKmtSVMGetAttr(void*, HSAuint64, unsigned int, HSA_SVM_ATTRIBUTE*) {
  return unsupported("shared virtual memory (hsaKmtSVMGetAttr)");
}

VITAMIN_THUNK hsaKmtSVMSetAttr(void*, HSAuint64, unsigned int, HSA_SVM_ATTRIBUTE*) {
  return unsupported("shared virtual memory (hsaKmtSVMSetAttr)");
}

VITAMIN_THUNK hsaKmtRegisterGraphicsHandleToNodes(HSAuint64, HsaGraphicsResourceInfo*, HSAuint64,
                                                  HSAuint32*) {
  return unsupported("graphics interoperability (hsaKmtRegisterGraphicsHandleToNodes)");
}
