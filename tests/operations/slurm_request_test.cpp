// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "deploy/slurm/accounting.h"
#include "deploy/slurm/request.h"

namespace vitamin::slurm {
namespace {

hal::Result<Arguments> arguments_of(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return read_arguments(static_cast<int>(pointers.size()), pointers.data());
}

TEST_CASE("--vitamin takes a share, a size of memory and a class, each or none") {
  CHECK(read_option("")->share == 0);
  CHECK(read_option("25")->share == 25);
  CHECK(read_option("100")->share == 100);
  CHECK(read_option("latency")->workload_class == "latency");
  CHECK(read_option("night-batch_2")->workload_class == "night-batch_2");
  const auto all = read_option("share=25,memory=20GiB,class=batch");
  REQUIRE(all);
  CHECK(all->share == 25);
  CHECK(all->memory == "20GiB");
  CHECK(all->workload_class == "batch");
  const auto mixed = read_option("batch,memory=25%,30");
  REQUIRE(mixed);
  CHECK(mixed->share == 30);
  CHECK(mixed->memory == "25%");
  CHECK(mixed->workload_class == "batch");
}

TEST_CASE("anything else is refused with a sentence") {
  for (const char* text :
       {"0",       "101",       "900",    "-5",         "25%",      "2.5",    "_x",
        "a b",     "a/b",       " 25",    "4294967297", "share=0",  "share=", "memory=20G",
        "memory=", "memory=0%", "class=", "class=1a",   "shares=5", "="}) {
    CAPTURE(text);
    const auto refused = read_option(text);
    REQUIRE(!refused);
    CHECK(refused.error().message.find(text) != std::string::npos);
  }
  for (const char* twice :
       {"25,30", "batch,class=other", "memory=1GiB,memory=1GiB", ",", "25,,x"}) {
    CAPTURE(twice);
    CHECK(!read_option(twice));
  }
}

TEST_CASE("shards are a share of the GPUs they are on") {
  const std::vector<std::uint32_t> eight{8};
  CHECK(share_of_shards(4, "0", eight) == 50);
  CHECK(share_of_shards(4, "0,1", eight) == 25);
  CHECK(share_of_shards(8, "3", eight) == 100);
  CHECK(share_of_shards(1, "0", {3}) == 33);
  CHECK(share_of_shards(1, "0", {1000}) == 1);
  CHECK(share_of_shards(4, "", eight) == 50);
  const std::vector<std::uint32_t> differ{8, 2, 4};
  CHECK(share_of_shards(1, "0", differ) == 12);
  CHECK(share_of_shards(1, "1", differ) == 50);
  CHECK(share_of_shards(5, "0,1", differ) == 50);
  CHECK_MESSAGE(share_of_shards(1, "7", differ) == 25, "the last count is of all that follow");
  CHECK_MESSAGE(share_of_shards(0, "0", eight) == 0, "no shards were asked for");
  CHECK_MESSAGE(share_of_shards(4, "0", {}) == 0, "the operator did not say how many there are");
  CHECK_MESSAGE(share_of_shards(9, "0", eight) == 0, "the operator said it wrong");
  CHECK_MESSAGE(share_of_shards(4, "x", eight) == 0, "no number of a GPU");
}

TEST_CASE("a node's usage is added to its part of the comment, and the rest stays") {
  const std::string one = with_use("", "node1", 12.345);
  CHECK(one == "vitamin_sm_seconds=12.345(node1=12.345)");
  const std::string two = with_use(one, "node2", 3.21);
  CHECK(two == "vitamin_sm_seconds=15.555(node1=12.345,node2=3.210)");
  CHECK(with_use(two, "node1", 1) == "vitamin_sm_seconds=16.555(node1=13.345,node2=3.210)");
  CHECK(with_use("before", "n", 1) == "before vitamin_sm_seconds=1.000(n=1.000)");
  CHECK(with_use(with_use("before", "n", 1) + " after", "m", 2) ==
        "before vitamin_sm_seconds=3.000(m=2.000,n=1.000) after");
  CHECK(use_of(two, "node2") == 3.21);
  CHECK(use_of(two, "node") == 0);
  for (const char* broken :
       {"vitamin_sm_seconds=1.000(n)", "vitamin_sm_seconds=1.000(n=1x)",
        "vitamin_sm_seconds=1.000(n=1.000", "vitamin_sm_seconds=", "vitamin_sm_seconds=1.000(,)"}) {
    CAPTURE(broken);
    CHECK(use_of(broken, "n") == 0);
    CHECK(with_use(broken, "n", 1) == "vitamin_sm_seconds=1.000(n=1.000)");
  }
}

TEST_CASE("steps have names") {
  CHECK(step_name(12, 0) == "12.0");
  CHECK(step_name(12, 0xfffffffb) == "12.batch");
}

TEST_CASE("words of plugstack.conf") {
  CHECK(arguments_of({})->socket == "/run/vitamin/vitamind.sock");
  const auto given =
      arguments_of({"socket=/a/%n/b%n", "libraries=/l", "config=/c=d", "shards_per_gpu=8,2"});
  REQUIRE(given);
  CHECK(for_node(given->socket, "n%n1") == "/a/n%n1/bn%n1");
  CHECK(given->libraries == "/l");
  CHECK(given->file == "/c=d");
  CHECK(given->shards_per_gpu == std::vector<std::uint32_t>{8, 2});
  for (const char* word : {"socket", "sockets=/a", "shards_per_gpu=0", "shards_per_gpu=x",
                           "shards_per_gpu=8,0", "shards_per_gpu=8,,2", "="}) {
    CAPTURE(word);
    const auto refused = arguments_of({word});
    REQUIRE_MESSAGE(!refused, word);
    CHECK(refused.error().message.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace vitamin::slurm
