// SPDX-License-Identifier: Apache-2.0
//
// Requests to services: their prompts in chunks, their steps in batches.
#include <algorithm>

#include "scheduler/simulator/device.h"

namespace vitamin::sim {

namespace {

constexpr std::uint64_t kKvTokens = 800'000;  // 105 GB of the H200's 141 beside the weights
constexpr std::size_t kLooksAhead = 16;       // prompts whose deadlines a prefill knows
// A prompt's keys and values are read and written once on their way to the decoding client.
constexpr double kCopyNsPerToken = 2 * kKvBytesPerToken / kBandwidth * 1e9;

}  // namespace

void SimulatedDevice::arrive_at_services() {
  arrival_ns_ = kForever;
  for (Service& service : services_) {
    const bool was_idle = service.prompts.empty();
    for (; service.arrived < service.requests.size(); ++service.arrived) {
      const double at_ns = service.requests[service.arrived].at_s * 1e9;
      if (at_ns > now_ns_) {
        arrival_ns_ = std::min(arrival_ns_, at_ns);
        break;
      }
      service.prompts.push_back(service.arrived);
    }
    if (was_idle && !service.prompts.empty()) next_chunk(service);
  }
}

void SimulatedDevice::arrive() {
  if (arrival_ns_ <= now_ns_) arrive_at_services();
  for (Played& played : played_)
    if (!played.serving && played.request < played.requests.size() &&
        played.requests[played.request].at_s * 1e9 <= now_ns_)
      begin_request(played, now_ns_);
  for (; !timers_.empty() && timers_.top().at_ns <= now_ns_; timers_.pop()) {
    Service& service = services_[timers_.top().service];
    service.joining.push_back(timers_.top().joins);
    if (clients_[service.decode].program == nullptr) next_step(service);
  }
}

// As many tokens of the prompts, in order, as a chunk holds.
void SimulatedDevice::next_chunk(Service& service) {
  SimulatedClient& client = clients_[service.prefill];
  if (service.prompts.empty()) {
    client.program = nullptr;
    rest(client);
    return;
  }
  std::uint32_t tokens = 0;
  service.finishing.clear();
  service.chunk_left = 0;
  const std::uint32_t before = service.prompt_done;
  std::uint32_t done = service.prompt_done;
  for (const std::size_t request : service.prompts) {
    const std::uint32_t left = service.requests[request].prompt_tokens - done;
    const std::uint32_t taken = std::min(left, kPrefillChunk - tokens);
    tokens += taken;
    if (taken < left) {
      service.chunk_left = done + taken;
      break;
    }
    service.finishing.push_back(request);
    done = 0;
    if (tokens == kPrefillChunk) break;
  }
  client.program = &library_.prefill(tokens, before);
  client.next = 0;
  begin_program(client, true);
}

// When the chunk under way has to end for the prompts in it and behind it that can still have their
// first token in time to have it; where none can, when it should have ended.
double SimulatedDevice::first_token_due_ns(const Service& service) {
  const Program& under_way = *clients_[service.prefill].program;
  const double soonest_ns = now_ns_ + under_way.whole_ns();
  double due_ns = kForever, late_ns = kForever, ahead_ns = 0;
  for (std::size_t i = 0; i < std::min(service.prompts.size(), kLooksAhead); ++i) {
    const ServiceRequest& asked = service.requests[service.prompts[i]];
    std::uint32_t done = 0;  // by the end of the chunk
    if (i < service.finishing.size())
      done = asked.prompt_tokens;
    else if (i == service.finishing.size())
      done = service.chunk_left;
    while (done < asked.prompt_tokens) {
      const std::uint32_t tokens = std::min(asked.prompt_tokens - done, kPrefillChunk);
      const Program& chunk = library_.prefill(tokens, done);
      ahead_ns += chunk.whole_ns();
      done += tokens;
    }
    const double by_ns = (asked.at_s * 1e3 + options_.target_ttft_ms) * 1e6 - ahead_ns;
    double& earliest = by_ns >= soonest_ns ? due_ns : late_ns;
    earliest = std::min(earliest, by_ns);
  }
  return due_ns < kForever ? due_ns : std::max(late_ns, 1.0);
}

void SimulatedDevice::prompt_ended(Service& service, std::size_t request) {
  const ServiceRequest& asked = service.requests[request];
  service.times[request].ttft_ms = now_ns_ * 1e-6 - asked.at_s * 1e3;
  service.first_ns[request] = now_ns_;
  if (asked.output_tokens <= 1) {
    finish(service, request, now_ns_);
    return;
  }
  // Its keys and values are copied; the decode recorded behind the copy is what lookahead sees.
  const double ready = now_ns_ + kCopyNsPerToken * asked.prompt_tokens;
  const double tpot_ns = options_.target_tpot_ms * 1e6;
  const Running joins{request, asked.output_tokens - 1, asked.prompt_tokens, now_ns_,
                      now_ns_ + tpot_ns};
  timers_.push({ready, static_cast<std::size_t>(&service - services_.data()), joins});
  SimulatedClient& client = clients_[service.decode];
  if (client.program != nullptr) return;
  const Program& program = library_.decode(1, asked.prompt_tokens);
  Said said;
  said.kind = program.kind();
  said.work_ns = program.whole_ns();
  said.due_ns = joins.due_ns;
  expect_step(client, said, ready);
}

void SimulatedDevice::next_step(Service& service) {
  SimulatedClient& client = clients_[service.decode];
  std::uint64_t context = 0;
  for (const Running& running : service.batch) context += running.context;
  while (!service.joining.empty() && service.batch.size() < kDecodeBatch &&
         context + service.joining.front().context <= kKvTokens) {
    context += service.joining.front().context;
    service.batch.push_back(service.joining.front());
    service.joining.pop_front();
  }
  if (service.batch.empty()) {
    client.program = nullptr;
    rest(client);
    return;
  }
  client.deadline_ns = kForever;
  for (const Running& running : service.batch)
    client.deadline_ns = std::min(client.deadline_ns, running.due_ns);
  // Requests that find no room in the batch wait for their token, too.
  for (const Running& running : service.joining)
    client.deadline_ns = std::min(client.deadline_ns, running.due_ns);
  client.program = &library_.decode(static_cast<std::uint32_t>(service.batch.size()), context);
  client.next = 0;
  begin_program(client, true);
}

void SimulatedDevice::step_ended(Service& service) {
  for (Running& running : service.batch) {
    result_.itl_ms.add((now_ns_ - running.last_ns) * 1e-6);
    running.last_ns = now_ns_;
    running.due_ns += options_.target_tpot_ms * 1e6;
    ++running.context;
    if (--running.left == 0) finish(service, running.request, now_ns_);
  }
  std::erase_if(service.batch, [](const Running& running) { return running.left == 0; });
  next_step(service);
}

void SimulatedDevice::finish(Service& service, std::size_t request, double last_ns) {
  RequestTimes& times = service.times[request];
  times.finished = true;
  if (times.output_tokens > 1)
    times.tpot_ms = (last_ns - service.first_ns[request]) * 1e-6 / (times.output_tokens - 1);
  ++service.finished;
}

}  // namespace vitamin::sim
