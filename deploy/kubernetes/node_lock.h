// SPDX-License-Identifier: Apache-2.0
//
// One plugin and one driver for a node: a second one, of another DaemonSet or of the package, would
// replace the sockets of the first, which would replace them in turn.
#pragma once

#include <atomic>
#include <functional>
#include <string>

namespace vitamin::kubernetes {

// Waits until no other process serves `directory`, which is then this process's until it ends,
// however it ends. `say` gets one line that names the other process, by its host (a pod's name) and
// number. False: `stopping` became true before.
bool serve_alone(const std::string& program, const std::string& directory,
                 const std::atomic<bool>& stopping,
                 const std::function<void(const std::string&)>& say);

}  // namespace vitamin::kubernetes
