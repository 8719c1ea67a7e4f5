// SPDX-License-Identifier: Apache-2.0
//
// Container Device Interface: a file that tells podman, docker, containerd and CRI-O what a
// container needs to share GPUs, by the names "vitamin.dev/share=...". The GPUs themselves are
// their vendor's devices.
//
//     podman run --device nvidia.com/gpu=0 --device vitamin.dev/share=percent-25 ...
//
// A container gets the directory of vitamind's socket, the directory of the preloaded libraries,
// two variables and, for a share, a third; with MPS its pipes. No privileges, nothing of the host's
// IPC: the memory that it shares with the daemon comes over the socket.
//
// The format: github.com/cncf-tags/container-device-interface, SPEC.md.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hal/result.h"
#include "tools/vitamin/preload.h"

namespace vitamin::tools {

inline constexpr const char* kCdiFile = "/etc/cdi/vitamin.json";

struct CdiOptions {
  std::string output = kCdiFile;  // "-": stdout
  std::string socket;             // of vitamind; empty: the machine's
  std::string mps;                // directory of MPS's pipes; empty: none
  std::vector<unsigned> shares = {10, 20, 25, 33, 50, 75};
  std::vector<std::string> classes;  // of vitamin.toml
  bool closed = false;               // no program runs without vitamind
  struct Isolated {
    std::string directory;  // CUDA_MPS_PIPE_DIRECTORY
    bool mounted = false;   // it is there
  };
  std::map<std::string, Isolated> isolated;  // by class; "": programs without one
};

// Of the lowest version that has what is used, so that old engines read it too.
nlohmann::ordered_json cdi_specification(const CdiOptions& options, const Libraries& libraries);

// What an engine would refuse, or what would make its containers fail to start: a sentence each.
// Empty: nothing.
std::vector<std::string> cdi_problems(const nlohmann::json& specification);
// Of every CDI file in a directory, or of one file, with its name before each sentence.
std::vector<std::string> cdi_problems_at(const std::filesystem::path& path);

class CdiVerbs {
 public:
  void add(CLI::App& app);
  // The exit code of the verb that was asked for; nothing when it was none of these.
  std::optional<int> run() const;

 private:
  CLI::App *cdi_ = nullptr, *generate_ = nullptr, *check_ = nullptr;
  CdiOptions options_;
  std::string path_ = "/etc/cdi";
};

}  // namespace vitamin::tools
