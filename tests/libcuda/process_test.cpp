// SPDX-License-Identifier: Apache-2.0
//
// What the environment and other processes do to the driver: each case runs the probe program.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

namespace vitamin::libcuda_tests {
namespace {

struct Outcome {
  int status = -1;
  std::string text;
};

// Runs the probe with `environment` before it ("NAME=value ..."); both its outputs come back.
Outcome probe(const std::string& action, const std::string& environment = "") {
  const char* program = std::getenv("VITAMIN_PROBE");
  REQUIRE_MESSAGE(program != nullptr, "VITAMIN_PROBE names the probe program");
  std::FILE* pipe = popen((environment + " " + program + " " + action + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Outcome outcome;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) outcome.text += line;
  outcome.status = pclose(pipe);
  return outcome;
}

std::string temporary(const char* name) {
  return "/tmp/vitamin-libcuda-" + std::to_string(getpid()) + "-" + name;
}

TEST_CASE("before cuInit every call but the harmless ones says so") {
  CHECK_EQ(probe("before_init").text,
           "cuDeviceGetCount 3\ncuDeviceGet 3\ncuDevicePrimaryCtxRetain 3\ncuMemAlloc 3\n"
           "cuDriverGetVersion 0\ncuInit(1) 1\ncuInit 0\n");
}

TEST_CASE("CUDA_VISIBLE_DEVICES hides and orders devices, which stay what they are") {
  const auto devices = [](std::initializer_list<int> numbers) {
    std::string text = "cuInit 0\ncount " + std::to_string(numbers.size()) + "\n";
    int ordinal = 0;
    for (const int number : numbers) {
      const std::string n = std::to_string(number);
      text += "cuDeviceGetUuid 0\ncuDeviceGetAttribute 0\ncuDeviceGetPCIBusId 0\ndevice " +
              std::to_string(ordinal++) + " is " + n + " on bus a" + n + " at 0000:a" + n +
              ":00.0\n";
    }
    return text;
  };
  CHECK_EQ(probe("devices").text, devices({0}));
  CHECK_EQ(probe("devices", "VITAMIN_SOFT_DEVICES=3").text, devices({0, 1, 2}));
  const auto seen = [](const std::string& list) {
    return probe("devices", "VITAMIN_SOFT_DEVICES=3 CUDA_VISIBLE_DEVICES=" + list).text;
  };
  CHECK_EQ(seen("1,2"), devices({1, 2}));
  CHECK_EQ(seen("2,0,1"), devices({2, 0, 1}));
  CHECK_EQ(seen("2,7,1"), devices({2}));
  CHECK_EQ(seen("-1,1"), "cuInit 100\n");
  CHECK_EQ(probe("devices", "CUDA_VISIBLE_DEVICES=").text, "cuInit 100\n");
  CHECK_EQ(probe("devices", "VITAMIN_SOFT_DEVICES=0").text, "cuInit 100\n");
}

TEST_CASE("a setting that is not understood ends the process with a sentence") {
  const Outcome outcome = probe("devices", "VITAMIN_SOFT_CLOCK=fast");
  CHECK_EQ(WEXITSTATUS(outcome.status), 2);
  CHECK(outcome.text.find("VITAMIN_SOFT_CLOCK=fast is not understood") != std::string::npos);
}

TEST_CASE("a forked child is refused and its parent goes on") {
  CHECK_EQ(probe("after_fork").text,
           "child cuDeviceGetCount 3\nchild cuInit 3\nparent cuCtxSynchronize 0\n");
}

TEST_CASE("scripted faults hit the calls that they name and no other") {
  CHECK_EQ(probe("calls", "VITAMIN_SOFT_FAULTS='cuMemAlloc@2=2;cuLaunchKernel@1+=719'").text,
           "cuMemAlloc 0\ncuMemAlloc 2\ncuMemAlloc 0\ncuLaunchKernel 719\ncuCtxSynchronize 0\n");
}

TEST_CASE("the trace has one line for each kernel with its shape") {
  const std::string path = temporary("trace");
  const Outcome outcome = probe("calls", "VITAMIN_SOFT_TRACE=" + path);
  REQUIRE_EQ(outcome.status, 0);
  std::ifstream file(path);
  std::string line;
  std::vector<std::string> kernels;
  while (std::getline(file, line))
    if (line.find(" kernel ") != std::string::npos) kernels.push_back(line);
  std::remove(path.c_str());
  REQUIRE_EQ(kernels.size(), 1);
  std::istringstream words(kernels[0]);
  std::string device, stream, kind, name, grid, block, shared, hash, sms;
  words >> device >> stream >> kind >> name >> grid >> block >> shared >> hash >> sms;
  CHECK_EQ(name, "nothing");
  CHECK_EQ(grid, "2,1,1");
  CHECK_EQ(block, "64,1,1");
  CHECK_EQ(sms, "132");
}

TEST_CASE("a process that waits for what cannot happen in virtual time is told, not left to hang") {
  const Outcome outcome = probe("deadlock", "VITAMIN_SOFT_CLOCK=virtual:1");
  CHECK_NE(outcome.status, 0);
  CHECK(outcome.text.find("software driver: deadlock") != std::string::npos);
  CHECK(outcome.text.find("0 of 1 operations done") != std::string::npos);
}

TEST_CASE("one seed of the virtual clock gives one run, other seeds others") {
  const std::string first = probe("race", "VITAMIN_SOFT_CLOCK=virtual:1").text;
  CHECK_EQ(probe("race", "VITAMIN_SOFT_CLOCK=virtual:1").text, first);
  unsigned different = 0;
  for (int seed = 2; seed < 8; ++seed)
    different +=
        probe("race", "VITAMIN_SOFT_CLOCK=virtual:" + std::to_string(seed)).text != first ? 1 : 0;
  CHECK_GT(different, 0);
}

TEST_CASE("a stream of one device waits for an event of another") {
  for (const char* clock : {"real", "virtual:3"}) {
    CAPTURE(clock);
    CHECK_EQ(
        probe("across", std::string("VITAMIN_SOFT_DEVICES=2 VITAMIN_SOFT_CLOCK=") + clock).text,
        "cuStreamWaitEvent 0\ncuEventRecord 400\ncuStreamSynchronize 0\nseen 5\n");
  }
}

TEST_CASE("a copy between contexts comes behind the work of both and before what follows") {
  for (const char* clock : {"real", "virtual:3"}) {
    CAPTURE(clock);
    CHECK_EQ(probe("peers", std::string("VITAMIN_SOFT_DEVICES=2 VITAMIN_SOFT_CLOCK=") + clock).text,
             "cuMemcpyPeer 0\ncuStreamSynchronize 0\ncopied 5, read behind it 5\nno context 201\n");
  }
}

TEST_CASE("an interprocess event reaches another process") {
  CHECK_EQ(probe("shared_event").text,
           "cuIpcGetEventHandle 0\ncuIpcOpenEventHandle 0\ncuEventSynchronize 0\ncuEventQuery 0\n");
}

TEST_CASE("another process opens memory by its handle, as often as it closes it") {
  const std::string ledger = temporary("ledger");
  const Outcome outcome = probe("shared_memory", "VITAMIN_SOFT_LEDGER=" + ledger);
  std::remove(ledger.c_str());
  CHECK_EQ(outcome.status, 0);
  CHECK_EQ(outcome.text,
           "of a pool 1\nof the host 1\nof nothing 1\ncuIpcGetMemHandle 0\nagain 0\n"
           "the same handle 0\nin its own process 201\n"
           "without flags 1\nno handle 1\ncuIpcOpenMemHandle 0\nagain 0\n"
           "same address 1, its base 1, 3000000 bytes, costs 0, holds 7\n"
           "cuMemFree 1\ncuIpcCloseMemHandle 0\ncuIpcCloseMemHandle 0\ncuIpcCloseMemHandle 1\n"
           "written by the peer: 9\ncuMemFree 0\nanother handle 0\nfreed 1\n");
}

TEST_CASE("a process that may not write large files has memory, but no handle of it") {
  const std::string ledger = temporary("small-ledger"), share = "VITAMIN_SOFT_LEDGER=" + ledger;
  CHECK_EQ(probe("calls", share).status, 0);  // makes the ledger
  const std::string text = probe("shared_memory", "ulimit -f 2000; " + share).text;
  std::remove(ledger.c_str());
  CHECK_MESSAGE(text.find("cuIpcGetMemHandle 801") != std::string::npos, text);
  CHECK_MESSAGE(text.find("written by the peer: 7") != std::string::npos, text);
}

TEST_CASE("without a ledger a device is a process's own, and no memory of it has a handle") {
  CHECK_NE(probe("shared_memory").text.find("cuIpcGetMemHandle 801"), std::string::npos);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
