// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "deploy/slurm/request.h"

namespace vitamin::slurm {
namespace {

hal::Result<Arguments> arguments_of(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return read_arguments(static_cast<int>(pointers.size()), pointers.data());
}

TEST_CASE("--vitamin takes a share, a class or nothing") {
  CHECK(read_option("")->share == 0);
  CHECK(read_option("25")->share == 25);
  CHECK(read_option("100")->share == 100);
  CHECK(read_option("latency")->workload_class == "latency");
  CHECK(read_option("night-batch_2")->workload_class == "night-batch_2");
}

TEST_CASE("what is neither is refused with a sentence") {
  for (const char* text :
       {"0", "101", "900", "-5", "25%", "2.5", "_x", "a b", "a/b", "a,b", " 25", "4294967297"}) {
    CAPTURE(text);
    const auto refused = read_option(text);
    REQUIRE(!refused);
    CHECK(refused.error().message.find(text) != std::string::npos);
  }
}

TEST_CASE("shards are a share of the GPUs they are on") {
  CHECK(share_of_shards(4, 1, 8) == 50);
  CHECK(share_of_shards(4, 2, 8) == 25);
  CHECK(share_of_shards(8, 1, 8) == 100);
  CHECK(share_of_shards(1, 1, 3) == 33);
  CHECK(share_of_shards(1, 1, 1000) == 1);
  CHECK(share_of_shards(4, 0, 8) == 50);
  CHECK_MESSAGE(share_of_shards(0, 1, 8) == 0, "no shards were asked for");
  CHECK_MESSAGE(share_of_shards(4, 1, 0) == 0, "the operator did not say how many there are");
  CHECK_MESSAGE(share_of_shards(9, 1, 8) == 0, "the operator said it wrong");
}

TEST_CASE("steps have names") {
  CHECK(step_name(12, 0) == "12.0");
  CHECK(step_name(12, 0xfffffffb) == "12.batch");
}

TEST_CASE("words of plugstack.conf") {
  CHECK(arguments_of({})->socket == "/run/vitamin/vitamind.sock");
  const auto given =
      arguments_of({"socket=/a/%n/b%n", "libraries=/l", "config=/c=d", "shards_per_gpu=8"});
  REQUIRE(given);
  CHECK(for_node(given->socket, "n%n1") == "/a/n%n1/bn%n1");
  CHECK(given->libraries == "/l");
  CHECK(given->file == "/c=d");
  CHECK(given->shards_per_gpu == 8);
  for (const char* word : {"socket", "sockets=/a", "shards_per_gpu=0", "shards_per_gpu=x", "="}) {
    CAPTURE(word);
    const auto refused = arguments_of({word});
    REQUIRE_MESSAGE(!refused, word);
    CHECK(refused.error().message.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace vitamin::slurm
