// SPDX-License-Identifier: Apache-2.0
//
// The isolation domain of a program: the programs that lose their contexts when one of them faults
// on an NVIDIA GPU. On one GPU there are
//
//     the shared domain   every program that has no other one
//     class NAME          the programs of that class: an MPS server of their own
//     process NUMBER      one process outside of MPS
//
// Contexts of different domains take turns on the GPU; only programs of one domain run side by
// side. vitamind tells `vitamin run` which domain a program is in; a client tells vitamind the pipe
// directory of MPS that it has, so that its leases are decided where its context is.
#pragma once

#include <string>
#include <string_view>

#include "daemon/config/configuration.h"

namespace vitamin::config {

// `workload`: the program's class; null: none.
Isolation isolation_of(const Configuration& configuration, const WorkloadClass* workload);
// Whether a program may be in another domain than the shared one.
bool isolates(const Configuration& configuration);

// Pipe directories of MPS, from that of the shared domain.
std::string directory_of_class(const std::string& shared, std::string_view workload_class);
// Of a process outside of MPS: no server is ever there, and nothing makes the directory.
std::string directory_without_mps(const std::string& shared);

// MPS makes a socket `control` in its pipe directory, and a socket's path has 107 characters.
inline constexpr std::size_t kMpsDirectoryMax = 99;

}  // namespace vitamin::config
