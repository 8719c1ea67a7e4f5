// SPDX-License-Identifier: Apache-2.0
//
// What vitamind knows of Kubernetes: the container of a process, and the claims of the node.
#include "daemon/jobs/claims.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/jobs/pods.h"

namespace vitamin::daemon {
namespace {

const std::string kId(64, 'a');
const std::string kUid = "0a1b2c3d-0000-4000-8000-123456789abc";
const std::string kUidOfSystemd = "0a1b2c3d_0000_4000_8000_123456789abc";

TEST_CASE("a control group names the container and its pod") {
  struct Case {
    std::string cgroup, pod;
  };
  const std::string slice =
      "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + kUidOfSystemd + ".slice/";
  for (const Case& each : {
           Case{"0::" + slice + "cri-containerd-" + kId + ".scope\n", kUid},
           Case{"0::" + slice + "crio-" + kId + ".scope", kUid},
           Case{"0::/kubepods.slice/kubepods-pod" + kUidOfSystemd + ".slice/docker-" + kId +
                    ".scope\n",
                kUid},
           Case{"1:cpu:/\n5:memory:/kubepods/besteffort/pod" + kUid + "/" + kId + "\n", kUid},
           Case{"0::/docker/" + std::string(64, 'b') + "/kubelet/kubepods/pod" + kUid + "/" + kId,
                kUid},
           Case{"0::/../../kubepods-pod" + kUidOfSystemd + ".slice/crio-" + kId + ".scope", kUid},
           Case{"0::/system.slice/docker-" + kId + ".scope\n", ""},
           Case{"4:memory:/libpod_parent/" + std::string(64, 'c') + "/libpod-" + kId, ""},
       }) {
    CAPTURE(each.cgroup);
    CHECK(container_of(each.cgroup).id == kId);
    CHECK(container_of(each.cgroup).pod == each.pod);
  }
  for (const std::string& none :
       {std::string(), std::string("0::/\n"),
        "0::/user.slice/user-1000.slice/pod" + kUid + "/" + kId, "0::/kubepods/pod" + kUid + "\n",
        "0::/system.slice/" + kId.substr(1) + ".scope", "kubepods/pod" + kUid + "/" + kId,
        "0::/other-" + kId}) {
    CAPTURE(none);
    CHECK(container_of(none).id.empty());
    CHECK(container_of(none).pod.empty());
  }
  Container one{.id = kId}, other{.id = std::string(64, 'b')};
  CHECK(group_of(one) == group_of(one));
  CHECK(group_of(one) != group_of(other));
}

TEST_CASE("a container of another pod is told from those of the own one") {
  const std::string other(64, 'b'), other_uid = "11111111-0000-4000-8000-123456789abc";
  const std::string pod = "0::/kubepods/burstable/pod" + kUid + "/";
  const std::string own = pod + kId + "\n";
  const std::string foreign = "0::/kubepods/burstable/pod" + other_uid + "/" + other;
  CHECK_FALSE(is_in_another_container(own, own, true));
  CHECK_FALSE(is_in_another_container(pod + other + "\n", own, true));
  CHECK_FALSE_MESSAGE(is_in_another_container("0::/system.slice/sshd.service\n", own, true),
                      "host");
  CHECK(is_in_another_container(foreign + "\n", own, true));
  CHECK(is_in_another_container(foreign + "/x\n", own, true));
  const std::string of_its_making = foreign + "/kubepods/burstable/pod" + kUid + "/" + kId;
  CHECK_MESSAGE(is_in_another_container(of_its_making, own, true), "a container made that group");

  // In a cgroup namespace, as a container of a pod usually is, its own group is "/".
  const std::string root = "0::/\n";
  CHECK_FALSE(is_in_another_container(root, root, true));
  CHECK_FALSE(is_in_another_container("0::/../cri-containerd-" + kId + ".scope\n", root, true));
  CHECK_FALSE(is_in_another_container("0::/../../../../system.slice/x.service\n", root, true));
  const std::string beside = "0::/../../kubepods-pod" + kUidOfSystemd + ".slice/crio-" + kId;
  CHECK(is_in_another_container(beside + ".scope\n", root, true));
  CHECK_MESSAGE(is_in_another_container("0::/../docker-" + kId + ".scope\n", root, false),
                "Docker's containers have one parent");

  // On the host, and in a container without a pod.
  const std::string service = "0::/system.slice/vitamind.service\n";
  CHECK_FALSE(is_in_another_container(service, service, false));
  CHECK(is_in_another_container(own, service, false));
  CHECK(is_in_another_container("0::/system.slice/docker-" + kId + ".scope\n", service, false));
  const std::string docker = "0::/docker/" + kId;
  CHECK_FALSE(is_in_another_container(docker + "/x\n", docker + "\n", false));
  CHECK(is_in_another_container("0::/docker/" + other + "\n", docker + "\n", false));
  CHECK_MESSAGE(is_in_another_container("5:memory:/libpod_parent/libpod-" + kId + "\n0::/\n",
                                        "5:memory:/\n0::/\n", false),
                "cgroup v1");
}

TEST_CASE("the kubelet's links name a container") {
  std::string logs = "/tmp/vitamin-logs-XXXXXX";
  REQUIRE(::mkdtemp(logs.data()) != nullptr);
  for (const std::string& name :
       {"web-0_shop_nginx-" + std::string(64, 'b'), "train-7_team-a_main-" + kId, "x-" + kId})
    std::ofstream(logs + "/" + name + ".log");
  Container container{.id = kId};
  find_names(container, logs);
  CHECK(container.pod_name == "train-7");
  CHECK(container.pod_namespace == "team-a");
  CHECK(container.name == "main");
  Container unknown{.id = std::string(64, 'd')};
  find_names(unknown, logs);
  CHECK(unknown.pod_name.empty());
  std::filesystem::remove_all(logs);
  find_names(container, logs);  // a directory that is not there changes nothing
  CHECK(container.name == "main");
}

TEST_CASE("a client gets the share of its pod's claim") {
  Claims claims;
  REQUIRE(claims.begin("c1.0 pod-a 25 batch - GPU-1"));
  REQUIRE(claims.begin("c1.0 pod-b 25 batch - GPU-1"));
  REQUIRE(claims.begin("c2.0 pod-b 50 - 1024 GPU-1"));
  const auto share = [&](const char* pod, const char* named) {
    const Claims::Found found = claims.of(pod, named);
    return found.claim != nullptr ? found.claim->share : 0;
  };
  CHECK(share("pod-a", "c1.0") == 25);
  CHECK_MESSAGE(share("pod-a", "") == 25, "the pod's, though the variable was left out");
  CHECK_MESSAGE(share("pod-a", "c2.0") == 25, "another pod's claim is not taken");
  CHECK(share("pod-b", "c1.0") == 25);
  CHECK_MESSAGE(share("pod-b", "") == 50, "the largest of several");
  CHECK(share("pod-c", "c1.0") == 0);
  CHECK_MESSAGE(share("", "c1.0") == 25, "the control group says nothing");
  CHECK(share("", "") == 0);
  CHECK(claims.of("pod-b", "c2.0").claim->memory == 1024);
  CHECK(claims.of("pod-a", "c1.0").claim->number != claims.of("pod-b", "c2.0").claim->number);
  CHECK(claims.end("c1") == 1);
  CHECK(share("pod-a", "") == 0);
  CHECK(claims.status()[0]["claim"] == "c2.0");
}

TEST_CASE("claims of a device never add up to more than all of it") {
  Claims claims;
  REQUIRE(claims.begin("c1.0 a 60 - - GPU-1,GPU-2"));
  const auto refused = claims.begin("c2.0 b 50 - - GPU-2");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message ==
        "device GPU-2 is over-committed: other claims have 60 percent of it, and this one asks "
        "for 50");
  CHECK(claims.of("b", "").claim == nullptr);
  CHECK(claims.begin("c2.0 b 40 - - GPU-2"));
  CHECK(claims.begin("c1.0 a 60 - - GPU-1,GPU-2"));  // again
  CHECK(claims.begin("c3.0 b 100 - - GPU-3"));
  CHECK_FALSE(claims.begin("c4.0 b 1 - - GPU-3"));
  CHECK(claims.end("c3") == 1);
  CHECK(claims.begin("c4.0 b 1 - - GPU-3"));
}

TEST_CASE("malformed claims are refused with a sentence") {
  Claims claims;
  for (const char* words :
       {"", "c", "c p 25 - -", "c p 25 - - GPU-1 more", "c p 0 - - GPU-1", "c p 101 - - GPU-1",
        "c p x - - GPU-1", "c p 25 a/b - GPU-1", "c p 25 - -1 GPU-1", "c p 25 - 1x GPU-1",
        "c p 25 - - GPU-1,", "c p/q 25 - - GPU-1", " p 25 - - GPU-1"}) {
    CAPTURE(words);
    const auto refused = claims.begin(words);
    REQUIRE_FALSE(refused);
    CHECK_FALSE(refused.error().message.empty());
  }
  CHECK(claims.status().empty());
  for (std::size_t i = 0; i < Claims::kMost; ++i)
    REQUIRE(claims.begin(std::to_string(i) + ".0 p 100 - - GPU-" + std::to_string(i)));
  CHECK_FALSE(claims.begin("more p 1 - - GPU-x"));
  CHECK(claims.begin("0.0 p 50 - - GPU-0"));
}

}  // namespace
}  // namespace vitamin::daemon
