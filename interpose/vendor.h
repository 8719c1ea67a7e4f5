// SPDX-License-Identifier: Apache-2.0
//
// The vendor's words for what the shared code speaks of. The sources of this directory are compiled
// once into each vendor's library; the build says which directory that is:
//
//   VITAMIN_VENDOR_TRAITS  "interpose/libcuda/vendor_traits.h": types, constants, names
//   VITAMIN_ENTRY_POINTS   "interpose/libcuda/driver.def": the table of entry points
//   VITAMIN_VENDOR_HOOKS   "interpose/libcuda/manual_overrides.h": what that table's rows name
//
// What vendor_traits.h says (namespace vitamin::interpose):
//   ApiStatus, kSuccess, kNotReady, kNoSuchFunction   status of a call
//   NativeStream, NativeEvent, NativeContext, MemoryPool  handles
//   kLegacyStream, kThreadStream                      handles of the default streams
//   kEventInterprocess                                flag of an event
//   kCallsItself, kLegacyIsReal, kFaultsAtExit,
//   kStreamDestroyWaits                               how the runtime behaves
//   HostFunction, StreamCallback, CallbackTail        what a stream calls on the host
//   DeviceAddress, PoolProperties, PhysicalHandle,
//   PhysicalProperties, ShareableType, array_shape,
//   kTellsMemoryNodes, uploads_to                     device memory (memory.h)
//   Graph, GraphExec, GraphNode, recorded_event       handles; the event that an argument holds
//   kLibraries                                        sonames of the runtime, newest first
//   may_be_entry_point, per_thread_variant, base_name of an entry point's name
//   is_management_symbol                              whether a function of the vendor's management
//                                                     library answers within quotas
//   VITAMIN_CALLED(USE)                               functions that are called, not overridden
//
// Functions that a vendor's directory defines are declared in context.h and call_wrappers.h.
#pragma once

#include VITAMIN_VENDOR_TRAITS
