// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/policy/verbs.h"

#include <fmt/format.h>

#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

constexpr const char* kSimulateFooter = R"(
Runs policies in virtual time: the scheduler and the policy objects that decide on a GPU, over
devices whose kernels take what was measured on an H200 (where it was not: see
scheduler/simulator/README.md).
Each GPU serves Llama-3.1-8B in two clients, prefill and decode, with the requests of the trace
(CSV: t_s,prompt_tokens,output_tokens), beside training jobs that never end. Or: the GPU runs
jobs as they were recorded on one, kernel by kernel (--job; files: bench/evaluation/streams.py).

Examples:
  vitamin simulate --trace azure.csv --policy throughput --policy tpot-first --load 0.7
  vitamin simulate --trace azure.csv --policy tpot-first --training resnet152 --plot plots
  vitamin simulate --trace azure.csv --policy ./my_policy.so --gpus 8 --services 25 --json
  vitamin simulate --job rn.job --job llama.job@arrivals.csv --policy fifo --policy tpot-first

  TTFT  first token after the scheduled arrival      TPOT  mean time of a further token
  ITL   each gap between tokens                      goodput  requests/s within both limits
)";

constexpr const char* kProfileFooter = R"(
  vitamin profile [--profiles DIRECTORY] -- COMMAND

Runs COMMAND with a width drawn anew for every launch, times each launch, and adds what was learnt
to the file of this GPU model (by default vitamin/profiles in the state directory). Its results are
what they always are: bits do not depend on the width. throughput:model=algorithm1, the policy that
decides by these times, also learns from every run of its own, one launch in 97.

Examples:
  vitamin profile -- python train.py --steps 20
  vitamin profile show ~/.local/state/vitamin/profiles/nvidia-h200.profile --plot curves.svg
)";

constexpr const char* kTestFooter = R"(
Asks the policy, built in or a shared object, in virtual time: 400 requests to 12 clients in bursts,
beside 4 training jobs. Says what was tried, what the policy did, and why and when it failed. The
same command asks the same. Exit code 1 when the policy was replaced by fifo.

Examples:
  vitamin policy test tpot-first
  vitamin policy test ./my_policy.so:share=2
)";

}  // namespace

void PolicyVerbs::add(CLI::App& app, CLI::App& policy) {
  show_ = policy.add_subcommand("show", "Say what one policy does and takes");
  show_->add_option("NAME", policy_, "A policy's name, or the path of a shared object")->required();
  test_ = policy.add_subcommand("test", "See how a policy behaves among many clients");
  test_->footer(kTestFooter);
  test_->add_option("NAME", policy_, "NAME[:PARAMETER=VALUE,...] or a path")->required();
  for (CLI::App* verb : {show_, test_}) verb->add_flag("--json", json_, "Answer as JSON");

  profile_ = app.add_subcommand("profile", "Learn, or show, how long kernels take at each width");
  profile_->footer(kProfileFooter);
  profile_->require_subcommand(0, 1);
  profile_->add_option("--profiles", profiles_, "Where profiles are kept")->type_name("DIRECTORY");
  profile_show_ = profile_->add_subcommand("show", "Print and plot the scaling curves of a file");
  profile_show_->add_option("FILE", profile_options_.file, "A profile")->required();
  profile_show_->add_option("--model", profile_options_.model, "Refuse a file of another GPU");
  profile_show_->add_option("--kernels", profile_options_.kernels, "How many, the longest first")
      ->capture_default_str();
  profile_show_->add_option("--plot", profile_options_.plot, "Write the curves as SVG")
      ->type_name("FILE");
  profile_show_->add_flag("--json", profile_options_.json, "Answer as JSON");

  SimulateOptions& o = simulation_;
  simulate_ = app.add_subcommand("simulate", "Run policies in virtual time on a trace of requests");
  simulate_->footer(kSimulateFooter);
  simulate_->add_option("--trace", o.trace, "The requests")->type_name("FILE");
  simulate_->add_option("--policy", o.policies, "Again for each policy (default: throughput)")
      ->type_name("NAME");
  simulate_->add_option("--load", o.load, "Scale the times to this share of the GPUs' capacity");
  simulate_->add_option("--gpus", o.gpus, "GPUs")->capture_default_str();
  simulate_->add_option("--services", o.services, "On each GPU")->capture_default_str();
  simulate_->add_option("--training", o.training, "Jobs on each GPU: NAME or NAME:COUNT, ...")
      ->delimiter(',');
  simulate_
      ->add_option(
          "--job", o.jobs,
          "A recorded job on each GPU, again for each: one that repeats its step, or, with "
          "@REQUESTS (like --trace), one that answers them one after the other")
      ->type_name("FILE[@REQUESTS]");
  simulate_->add_option("--until", o.until_s, "End at this second, whatever is unfinished");
  simulate_->add_option("--warm-up", o.warm_up_s, "Requests before this second do not count")
      ->capture_default_str();
  simulate_->add_option("--turn", o.turn_ms,
                        "Recorded jobs on the whole device take turns of so many ms, as without "
                        "MPS; 0: they share it");
  simulate_->add_option("--switch", o.switch_us, "Lost at each change of turns, us");
  simulate_->add_option("--from", o.from_s, "Begin at this second of the trace");
  simulate_->add_option("--seconds", o.seconds, "Use so many seconds of the trace");
  simulate_->add_option("--max-prompt", o.most_prompt, "Cut longer prompts")->capture_default_str();
  simulate_->add_option("--max-output", o.most_output, "Cut longer outputs")->capture_default_str();
  simulate_->add_option("--ttft", o.ttft_ms, "Limit in ms, and the bound of prefills")
      ->capture_default_str();
  simulate_->add_option("--tpot", o.tpot_ms, "Limit in ms, and the bound of decodes")
      ->capture_default_str();
  simulate_->add_option("--window", o.window_us,
                        "Submitted ahead of completion, us (default: as far as grants allow)");
  simulate_->add_flag("--silent", o.silent, "Engines announce a step only where they ask for SMs");
  simulate_->add_flag("--latency", o.latency_class,
                      "Recorded jobs that answer requests are of a latency class without a bound");
  simulate_->add_option("--quantum", o.quantum_ms, "A grant to a starving stream lasts so long, ms")
      ->capture_default_str();
  simulate_->add_option("--creation", o.creation_ms, "Make each context on demand: ms");
  simulate_->add_option("--seed", o.seed, "Seed of policies that draw")->capture_default_str();
  simulate_->add_option("--plot", o.plot, "Write SVG plots there")->type_name("DIRECTORY");
  simulate_->add_flag("--json", o.json, "Answer as JSON");
}

bool PolicyVerbs::learns(RunOptions& options) const {
  if (!profile_->parsed() || profile_show_->parsed() || options.command.empty()) return false;
  options.policy = "random";
  options.profiles = profiles_;
  options.profile_every = 1;
  options.learns = true;
  return true;
}

std::optional<int> PolicyVerbs::run() {
  if (show_->parsed()) return show_policy(policy_, json_);
  if (test_->parsed()) return test_policy(policy_, json_);
  if (profile_show_->parsed()) return show_profile(profile_options_);
  if (profile_->parsed()) {
    fmt::print("{}", profile_->help());
    return kExitFailed;
  }
  if (simulate_->parsed()) return simulate(simulation_);
  return std::nullopt;
}

}  // namespace vitamin::tools
