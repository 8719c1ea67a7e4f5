// SPDX-License-Identifier: Apache-2.0
//
// SM-seconds of a job in its AdminComment, which `sacct -o AdminComment` shows:
//
//     vitamin_sm_seconds=15.555(node1=12.345,node2=3.210)
//
// the sum, and each node's part. What else stands in the comment stays.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hal/result.h"

namespace vitamin::slurm {

// `comment` with so much more for `node`.
std::string with_use(std::string_view comment, std::string_view node, double sm_seconds);

// What with_use() has written for `node`; 0: nothing.
double use_of(std::string_view comment, std::string_view node);

// Adds what a step used on this node to the comment of its job: in slurmctld while the job runs, in
// slurmdbd when it has ended. As root. `directory`: one for all steps on this node, which add one
// after the other. Nodes that add at once write again what another has overwritten. Takes a tenth
// of a second for a job of several nodes, seconds for one that has ended and where Slurm does not
// answer. The error is a sentence.
hal::Status record_use(std::uint32_t job, const std::string& node, double sm_seconds,
                       const std::string& directory);

}  // namespace vitamin::slurm
