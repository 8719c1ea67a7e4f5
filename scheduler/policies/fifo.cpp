// SPDX-License-Identifier: Apache-2.0
//
// fifo: every client shares the whole device. The smallest policy, and the one to read before
// writing another.
#include "scheduler/policies/builtin.h"

namespace vitamin::scheduler {
namespace {

class Fifo final : public AllocationPolicy {
 public:
  void allocate(const Snapshot& snapshot, Allocation& out) override {
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      Row& row = out.rows.emplace_back();  // the whole device, shared
      row.client = client.id;
    }
  }
};

}  // namespace

Policy make_fifo() {
  PolicyDescription description;
  description.name = "fifo";
  description.summary = "every client shares the whole device";
  return {description, std::make_unique<Fifo>(), nullptr};
}

}  // namespace vitamin::scheduler
