// SPDX-License-Identifier: Apache-2.0
//
// One random program: made and run at the same time, by draws alone. It asks no question whose
// answer may vary, so that bare and preloaded it makes the same calls.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "host.h"
#include "model.h"
#include "world.h"

namespace vitamin::random_programs {

inline constexpr std::size_t kCells = 4;    // a device
inline constexpr std::size_t kPages = 3;    // of page-locked memory; the last one is registered
inline constexpr std::size_t kEvents = 4;   // a device
inline constexpr std::size_t kWorkers = 3;  // threads besides the one that directs
inline constexpr unsigned kDepth = 900;     // operations that a held stream takes at most

class Program {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::set<unsigned> dropped;     // fragments left out (to shorten a program)
    std::set<std::string> without;  // kinds of fragments left out
    std::set<std::string> only;     // not empty: the only kinds
    unsigned long child_limit_ms = 3000;
  };
  Program(World& world, const Options& options);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  // False: memory is not what program order makes it.
  bool run();
  unsigned fragments() const { return fragments_; }

 private:
  using Places = std::vector<std::size_t>;
  struct Orphan {  // what a destroyed stream still does, and an event behind it
    Set before, maybe;
    EventModel* event;
  };
  struct Flight {  // a call that another thread is in
    unsigned thread = 0;
    Line* line = nullptr;
    Line* partner = nullptr;
    std::string name;
    std::shared_ptr<CUresult> answer;
    Set before;                         // of what follows on the line
    Set partner_before;                 // of what follows on its partner
    Set maybe;                          // what the call may wait for
    bool waits = false;                 // the host has waited when it returns
    const EventModel* event = nullptr;  // that the call waits for
    Places places;
  };

  // --- program.cpp: life, threads, waiting ---
  void make_device(unsigned device);
  Line& make_line(CUstream handle, unsigned device, LineKind kind, unsigned thread);
  void tear_down();
  void destroy_device_objects(unsigned device);
  bool check_memory();
  bool fragment(unsigned index);
  CUresult call(unsigned thread, unsigned device, const std::function<CUresult()>& what);
  unsigned thread_for(const Line& line);
  std::size_t number_of(const Line& line) const;
  std::size_t number_of(const EventModel& event) const;
  template <class... Args>
  void say(const char* format, Args... args) {
    world_.log().say(format, args...);
  }
  // Makes a call of the line and logs its answer.
  CUresult on(Line& line, const char* name, const std::function<CUresult()>& what,
              unsigned cost = 1);

  // --- program.cpp: order ---
  Set ordered(const Line& line) const;
  Set all_of(unsigned device) const;  // that its work may wait for
  bool held(const Set& set) const { return (set & closed_).any(); }
  bool held_by_kernel(const Line& line) const;
  // Nothing in the set can wait for a gate: the host may wait for it.
  bool can_wait(const Set& set) const;
  void reached(const Set& set);
  bool taken(const Line& line) const;
  bool available(std::size_t place) const;
  bool room(const Line& line, unsigned cost) const;
  // On the legacy streams of all devices: a copy between two takes a place in both (measured).
  bool room_on_legacies() const;
  void order(Line& line, std::size_t place, bool writes);
  // One more operation of the line; orders it first.
  void operation(Line& line, const Places& reads, const Places& writes);
  void add(Line& line);
  void come_behind_both(Line& here);
  void apply(const Effect& effect);
  void record(EventModel& event, Line& line);
  void wait(Line& line, EventModel& event);
  void wait_for(Line& line);
  bool awaited(const EventModel& event) const;
  EventModel& fresh_event(unsigned device);

  // --- draws ---
  Line* any_line(bool captures = false);
  Line* line_of(unsigned device, bool captures);
  bool draw_place(unsigned device, bool cells_only, std::size_t& place);
  bool is_cell(std::size_t place) const { return place < kCells * devices_; }
  unsigned device_of(std::size_t cell) const { return static_cast<unsigned>(cell / kCells); }
  CUdeviceptr address(std::size_t place) const;
  void* host_address(std::size_t place) const;
  std::uint64_t draw_time();
  Gpu& gpu(unsigned device) { return world_.gpus()[gpus_[device]]; }
  Gpu& gpu(const Line& line) { return gpu(line.device); }
  // The two devices of the program are two contexts of one.
  bool one_device() const { return devices_ > 1 && gpus_[1] == World::kSecondContext; }

  // --- operations.cpp: single operations ---
  void noise(unsigned count);
  void one_operation();
  bool kernel(Line& line, std::uint64_t ns);
  CUresult launch_mix(const Line& line, const Effect& effect, std::uint64_t ns, unsigned blocks);
  void copy();
  CUresult copy_within(const Line& line, std::size_t to, std::size_t from, unsigned how);
  void pageable_copy();
  void fill();
  void write_values();
  void host_function();
  void scratch();
  void timed();
  void default_copy();
  void host_step();
  static CUresult until_ready(const std::function<CUresult()>& query);
  void query_until_idle(Line& line);
  void ask();
  void close_gate(Line& line);
  void open_gate(Gate& gate);
  void open_gates_of(const Set& set);
  void open_all_gates();
  void gate_fragment();
  void open_fragment();
  void refused();
  CUresult refused_launch(Line& line, unsigned which);
  CUresult refused_call(Line& line, unsigned which);

  // --- graphs.cpp ---
  void make_graph();
  void launch_graph();
  void launch_graph_on(GraphModel& graph, Line& line);
  bool prepare_graph(GraphModel& graph, Line& line);
  void finish_graph(GraphModel& graph, Line& line);
  bool graph_in_flight() const;
  void change_graph();
  void destroy_graph();
  GraphModel* any_graph();
  CUgraphNode add_kernel_node(GraphModel& graph, const Effect& effect,
                              const std::vector<CUgraphNode>& after);
  void fill_parameters(const GraphModel& graph, const GraphModel::Node& node,
                       CUDA_KERNEL_NODE_PARAMS& parameters);
  std::vector<CUgraphNode> add_graph_nodes(GraphModel& graph, CUgraphNode first);
  bool captured_kernel(Line& line, GraphModel& graph, const Places& allowed);
  void capture();
  void capture_on(Line& origin, Line* helper);
  void break_capture(Line& line, const EventModel& event);

  // --- scenarios.cpp ---
  void deep();
  void flight();
  Flight& begin_flight(Line& line, const char* name, std::function<CUresult()> what);
  bool fly_graph(Line& line);
  bool fly_work(Line& line);
  bool fly_wait(Line& line);
  void land(Flight& flight);
  void land_all();
  bool draw_flight();
  void chains();
  void sums();
  Line* partner_of(const Line& line, unsigned cost);
  CUresult launch_additions(const Line& line, std::size_t cell, Word value, unsigned count,
                            std::uint64_t ns);
  void stream_memory();
  void limited_pool();
  CUdeviceptr allocate_limited(Line& line);
  void use_and_free(Line& line, CUdeviceptr memory, std::size_t cell);
  void peer_copy();
  void draining_call();
  void temporary_stream();
  void fork_child();
  void ends_with_reset();
  std::function<CUresult()> make_chain(Line& line, Line* partner, std::size_t cell, unsigned steps);
  CUresult launch_nothing(const Line& line, unsigned count, CUevent record_each);

  World& world_;
  Options options_;
  Random random_;
  unsigned fragments_ = 0;
  unsigned devices_ = 1;
  std::array<std::size_t, 2> gpus_{0, 1};  // of the world, of each device of the program
  std::deque<Line> lines_;
  std::deque<EventModel> events_;  // kEvents a device, then those of orphans
  std::deque<EventModel*> shared_events_;
  std::list<Orphan> orphans_;
  std::list<Gate> gates_;
  std::list<GraphModel> graphs_;
  std::list<Flight> flights_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<CUdeviceptr> cells_;
  std::array<Word*, kPages> pages_{};
  std::array<CUdeviceptr, kPages> page_addresses_{};
  std::vector<Data> expected_;
  std::vector<Set> written_, read_;
  std::vector<bool> reserved_;
  std::vector<Word> large_;  // pageable
  Set host_;                 // known to have ended
  Set closed_;               // closed gates
  Set host_functions_;       // run one at a time, so one may wait for another's gate
  std::size_t operations_ = 0;
  std::array<Set, 2> pool_before_, pool_maybe_;  // the last free of each device's limited pool
  int reset_ = -1;                               // the device whose context is reset at the end
  bool release_ = false;
};

}  // namespace vitamin::random_programs
