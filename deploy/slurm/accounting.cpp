// SPDX-License-Identifier: Apache-2.0
#include "deploy/slurm/accounting.h"

#include <fcntl.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurmdb.h>
#include <sys/file.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <type_traits>

#include "daemon/protocol/fd.h"

namespace vitamin::slurm {
namespace {

constexpr std::size_t kMostText = 60'000;  // a column of slurmdbd holds 65,535 bytes

// By Slurm's number of the error, which is `native`.
tl::unexpected<hal::Error> failed(const char* what, int number = errno) {
  return hal::fail(hal::Errc::kUnavailable, std::string(what) + ": " + ::slurm_strerror(number),
                   number);
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

struct Comment {
  std::string text;
  std::uint32_t nodes = 1;  // of the job
  bool settled = true;      // nothing but other nodes' steps writes it any more
};

// Where a comment is kept.
class Keeper {
 public:
  Keeper(std::uint32_t settle, bool comes) : settle_ms(settle), may_come(comes) {}
  virtual ~Keeper() = default;
  virtual hal::Result<Comment> read() = 0;
  virtual hal::Status write(std::string text) = 0;

  const std::uint32_t settle_ms;  // longer than another writer takes from read() to write()
  // The record of the job, what slurmctld sends when the job has ended, or another writer, also of
  // one node.
  const bool may_come;
};

class Controller final : public Keeper {
 public:
  explicit Controller(std::uint32_t job) : Keeper(100, false), job_(job) {}

  hal::Result<Comment> read() override {
    job_info_msg_t* told = nullptr;
    if (::slurm_load_job(&told, job_, SHOW_ALL) != SLURM_SUCCESS)
      return failed("slurmctld does not tell of the job");
    const std::unique_ptr<job_info_msg_t, void (*)(job_info_msg_t*)> jobs(
        told, &::slurm_free_job_info_msg);
    for (std::uint32_t i = 0; i < jobs->record_count; ++i)  // all of an array, perhaps
      if (const slurm_job_info_t& job = jobs->job_array[i]; job.job_id == job_)
        return Comment{text_of(job.admin_comment), job.num_nodes};
    return failed("slurmctld does not tell of the job", ESLURM_INVALID_JOB_ID);
  }

  hal::Status write(std::string text) override {
    job_desc_msg_t change;
    ::slurm_init_job_desc_msg(&change);
    change.job_id = job_;
    change.admin_comment = text.data();
    if (::slurm_update_job(&change) == SLURM_SUCCESS) return {};
    return failed("slurmctld does not take the comment");
  }

 private:
  std::uint32_t job_;
};

class Database final : public Keeper {
 public:
  explicit Database(std::uint32_t job) : Keeper(1000, true), id_(job) {
    job_.step_id = {.job_id = job, .step_het_comp = NO_VAL, .step_id = NO_VAL};
    job_.array_task_id = job_.het_job_offset = NO_VAL;
    // NO_TRUNC: else a job that runs has an end, which is now.
    condition_.flags = JOBCOND_FLAG_NO_STEP | JOBCOND_FLAG_NO_DEFAULT_USAGE | JOBCOND_FLAG_NO_TRUNC;
    condition_.db_flags = SLURMDB_JOB_FLAG_NOTSET;
    condition_.step_list = ::slurm_list_create(nullptr);
    ::slurm_list_append(condition_.step_list, &job_);
    connection_ = ::slurmdb_connection_get(nullptr);
  }
  ~Database() override {
    ::slurmdb_connection_close(&connection_);
    ::slurm_list_destroy(condition_.step_list);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  hal::Result<Comment> read() override {
    // slurmdbd answers from one snapshot of its database until the transaction ends.
    ::slurmdb_connection_commit(connection_, false);
    const Records found(::slurmdb_jobs_get(connection_, &condition_), &::slurm_list_destroy);
    if (!found) return failed("slurmdbd does not tell of the job");
    // The number of an array or of a heterogeneous job is that of one of its jobs, too.
    while (void* const record = ::slurm_list_pop(found.get())) {
      const std::unique_ptr<slurmdb_job_rec_t, void (*)(void*)> job(
          static_cast<slurmdb_job_rec_t*>(record), &::slurmdb_destroy_job_rec);
      if (job->jobid != id_) continue;
      select(*job);
      // With the end of the job slurmctld sends the comment that it has, which takes the place of
      // what stands here.
      return Comment{text_of(job->admin_comment), job->alloc_nodes, job->end != 0};
    }
    return failed("slurmdbd does not tell of the job", ESLURM_INVALID_JOB_ID);
  }

  hal::Status write(std::string text) override {
    slurmdb_job_rec_t change{};
    change.derived_ec = NO_VAL;  // stays
    change.admin_comment = text.data();
    const Records changed(::slurmdb_job_modify(connection_, &condition_, &change),
                          &::slurm_list_destroy);
    if (!changed || ::slurmdb_connection_commit(connection_, true) != SLURM_SUCCESS)
      return failed("slurmdbd does not take the comment");
    return {};
  }

 private:
  using Records = std::unique_ptr<std::remove_pointer_t<List>, void (*)(List)>;

  // This job alone.
  void select(const slurmdb_job_rec_t& job) {
    job_.step_id.job_id = id_;
    job_.array_task_id = job_.het_job_offset = NO_VAL;
    if (job.array_job_id != 0) {
      job_.step_id.job_id = job.array_job_id;
      job_.array_task_id = job.array_task_id;
    } else if (job.het_job_id != 0 && job.het_job_id != NO_VAL) {
      job_.step_id.job_id = job.het_job_id;
      job_.het_job_offset = job.het_job_offset;
    }
  }

  std::uint32_t id_;
  slurm_selected_step_t job_{};
  slurmdb_job_cond_t condition_{};
  void* connection_ = nullptr;
};

void pause(std::uint32_t ms) {
  const timespec time{ms / 1000, static_cast<long>(ms % 1000) * 1'000'000};
  ::nanosleep(&time, nullptr);
}

// So that nodes that end at once do not write at once.
std::uint32_t any_below(std::uint32_t ms) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return ms == 0 ? 0 : static_cast<std::uint32_t>(now.tv_nsec / 1000) % ms;
}

// Neither slurmctld nor slurmdbd changes a text only if it is still what was read, so what was
// written is looked at again.
hal::Status add(Keeper& keeper, const std::string& node, double sm_seconds) {
  constexpr int kTries = 10;
  constexpr std::uint32_t kMost = 2000;
  for (int i = 0; i < kTries; ++i) {
    const auto before = keeper.read();
    const bool last = i == kTries - 1;
    if (!before && (before.error().native != ESLURM_INVALID_JOB_ID || !keeper.may_come || last))
      return tl::unexpected(before.error());
    const std::uint32_t nodes = before ? before->nodes : 1;
    const std::uint32_t settle = keeper.settle_ms + any_below(std::min(20 * nodes, kMost));
    if (before && (before->settled || last)) {
      const std::string wanted = with_use(before->text, node, sm_seconds);
      if (wanted.size() > kMostText)
        return hal::fail(hal::Errc::kUnavailable, "the comment is as long as it may be");
      if (auto written = keeper.write(wanted); !written) return written;
      if (nodes <= 1 && !keeper.may_come) return {};
      pause(settle);
      const auto after = keeper.read();
      if (after && std::abs(use_of(after->text, node) - use_of(wanted, node)) < 1e-3) return {};
    }
    pause(any_below(settle));
  }
  return hal::fail(hal::Errc::kUnavailable, "the comment does not stay as it was written");
}

}  // namespace

hal::Status record_use(std::uint32_t job, const std::string& node, double sm_seconds,
                       const std::string& directory) {
  const protocol::Fd lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock) (void)::flock(lock.get(), LOCK_EX);
  Controller running(job);
  const auto added = add(running, node, sm_seconds);
  const int number = added ? SLURM_SUCCESS : added.error().native;
  if (number != ESLURM_JOB_FINISHED && number != ESLURM_INVALID_JOB_ID) return added;
  Database ended(job);
  return add(ended, node, sm_seconds);
}

}  // namespace vitamin::slurm
