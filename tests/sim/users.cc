#include "tests/sim/users.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fsdpd::sim {
namespace {

constexpr int kTooManyNodes = 9;

bool Ended(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

template <typename Request>
Request Of(const std::string& id) {
  Request request;
  request.set_id(id);
  return request;
}

}  // namespace

// Few different specs, so that plans are shared.
v1::JobSpec Users::NewSpec(int number) {
  static constexpr const char* kKinds[] = {"steady", "steady", "flaky", "hangs", "broken"};
  v1::JobSpec spec;
  spec.set_name(kKinds[world_->dice.Below(5)]);
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->mutable_synthetic();
  spec.mutable_data()->set_sequence_length(64);
  spec.mutable_train()->set_steps(world_->dice.OneIn(2) ? 6 : 14);
  v1::Resources* resources = spec.mutable_resources();
  resources->set_device(v1::DEVICE_CPU);
  resources->set_nodes(1 + world_->dice.Below(2));
  resources->set_ranks_per_node(1);
  if (world_->dice.OneIn(12)) resources->set_nodes(kTooManyNodes);
  if (!world_->dice.OneIn(4)) {
    const int directory = world_->dice.OneIn(8) ? 0 : number;
    spec.mutable_checkpoint()->set_dir(absl::StrCat("/runs/", directory));
    spec.mutable_checkpoint()->set_every_steps(4);
  }
  spec.mutable_restart()->set_max_attempts(1 + world_->dice.Below(3));
  spec.mutable_restart()->set_hang_seconds(10);
  return spec;
}

void Users::AddSharedFields(Submission* submission) {
  Dice& dice = world_->dice;
  v1::SubmitJobRequest& request = submission->request;
  v1::JobSpec* const spec = request.mutable_spec();
  if (dice.OneIn(2)) spec->set_priority(dice.Below(3));
  if (dice.OneIn(2)) request.set_project(dice.OneIn(2) ? "red" : "blue");
  submission->has_dependency = dice.OneIn(4);
  if (spec->checkpoint().dir().empty()) return;
  request.set_preemptible(dice.OneIn(2));
  if (spec->resources().nodes() != 2 || !dice.OneIn(3)) return;
  spec->mutable_restart()->mutable_elastic()->set_min_ranks(1);
  spec->mutable_restart()->mutable_elastic()->set_wait_seconds(5);
}

void Users::SubmitJobs(int jobs, absl::Duration within) {
  for (int i = 0; i < jobs; ++i) {
    Submission submission;
    submission.request.set_request_id(absl::StrCat("request-", i));
    *submission.request.mutable_spec() = NewSpec(i + 1);
    if (world_->shared()) AddSharedFields(&submission);
    submissions_.push_back(std::move(submission));
    ++open_;
    world_->After(world_->dice.Between(absl::ZeroDuration(), within),
                  [this, i] { Submit(static_cast<size_t>(i)); });
  }
}

void Users::Submit(size_t number) {
  Submission& submission = submissions_[number];
  const auto again = [&](absl::Duration most) {
    world_->After(world_->dice.Between(absl::Milliseconds(200), most), [this, number] { Submit(number); });
  };
  if (!submission.id.empty() && referee_->IsDeleted(submission.id)) return;
  // Chosen once: a repeated request must be identical.
  if (std::exchange(submission.has_dependency, false)) {
    if (const std::string before = RandomJob(); !before.empty()) submission.request.add_after(before);
  }
  if (LosesCall()) return again(absl::Seconds(3));
  v1::SubmitJobResponse response;
  absl::Status status;
  const bool answered = coordinator_->Call([&](ApiHandlers* api) {
    status = api->jobs.SubmitJob({nullptr, Caller{"user"}}, submission.request, &response);
  });
  if (!answered || LosesCall()) return again(absl::Seconds(3));
  const bool known = !submission.id.empty();
  if (!status.ok()) {
    world_->Log("submit of ", submission.request.request_id(), ": ", absl::StatusCodeToString(status.code()));
    if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) return again(absl::Seconds(3));
    if (known)
      world_->ReportViolation(absl::StrCat("request ", submission.request.request_id(),
                                           ": the repeated call failed: ", status.ToString()));
    --open_;
    return;
  }
  world_->Log("submitted ", submission.request.request_id(), " job=", response.job().id());
  submission.id = response.job().id();
  const int64_t nodes = submission.request.spec().resources().nodes();
  const auto quota = coordinator_->quotas().find(submission.request.project());
  if (nodes == kTooManyNodes || (quota != coordinator_->quotas().end() && nodes > quota->second))
    too_large_.insert(submission.id);
  referee_->Submitted(submission.request.request_id(), response.job());
  if (!known) --open_;
  if (world_->dice.OneIn(3)) again(absl::Seconds(40));
}

std::string Users::RandomJob() {
  std::vector<std::string> ids;
  for (const Submission& submission : submissions_) {
    if (!submission.id.empty()) ids.push_back(submission.id);
  }
  return ids.empty() ? "" : ids[static_cast<size_t>(world_->dice.Below(static_cast<int>(ids.size())))];
}

void Users::MakeRandomRequest() {
  static constexpr const char* kRequests[] = {"cancel", "pause", "pause", "resume",
                                              "resume", "retry", "delete"};
  if (world_->dice.OneIn(5)) {
    const std::string& node =
        nodes_[static_cast<size_t>(world_->dice.Below(static_cast<int>(nodes_.size())))];
    return world_->dice.OneIn(3) ? Drain(node) : Cordon(node, world_->dice.OneIn(2));
  }
  const std::string id = RandomJob();
  if (!id.empty()) Request(kRequests[world_->dice.Below(7)], id);
}

void Users::Request(const std::string& what, const std::string& id) {
  if (LosesCall()) return;
  absl::Status status;
  v1::Job job;
  const int64_t grace_s = world_->dice.OneIn(3) ? 0 : 8;
  const bool answered = coordinator_->Call([&](ApiHandlers* api) {
    referee_->AsksFor(id, what);
    const auto take = [&](const auto& response) { job = response.job(); };
    if (what == "cancel") {
      auto request = Of<v1::CancelJobRequest>(id);
      request.set_grace_seconds(grace_s);
      v1::CancelJobResponse response;
      status = api->changes.CancelJob({}, request, &response);
      take(response);
    } else if (what == "pause") {
      auto request = Of<v1::PauseJobRequest>(id);
      request.set_grace_seconds(grace_s);
      v1::PauseJobResponse response;
      status = api->changes.PauseJob({}, request, &response);
      take(response);
    } else if (what == "resume") {
      const auto request = Of<v1::ResumeJobRequest>(id);
      v1::ResumeJobResponse response;
      status = api->changes.ResumeJob({}, request, &response);
    } else if (what == "retry") {
      const auto request = Of<v1::RetryJobRequest>(id);
      v1::RetryJobResponse response;
      status = api->changes.RetryJob({}, request, &response);
    } else {
      const auto request = Of<v1::DeleteJobRequest>(id);
      v1::DeleteJobResponse response;
      status = api->changes.DeleteJob({}, request, &response);
    }
    world_->Log("requested ", what, " ", id, ": ", status.ok() ? "ok" : status.message());
  });
  if (answered && status.ok() && job.has_spec()) referee_->Answered(what, job);
}

void Users::Cordon(const std::string& node, bool on) {
  absl::Status status;
  // A call without a reply may have been executed.
  if (!on) referee_->Cordoned(node, false);
  const bool answered = coordinator_->Call([&](ApiHandlers* api) {
    if (on) {
      v1::CordonNodeRequest request;
      request.set_node(node);
      request.set_reason("under investigation");
      v1::CordonNodeResponse response;
      status = api->nodes.CordonNode({}, request, &response);
    } else {
      v1::UncordonNodeRequest request;
      request.set_node(node);
      v1::UncordonNodeResponse response;
      status = api->nodes.UncordonNode({}, request, &response);
    }
    world_->Log(on ? "cordon " : "uncordon ", node, ": ", status.ok() ? "ok" : status.message());
  });
  if (answered && status.ok() && on) referee_->Cordoned(node, true);
}

void Users::Drain(const std::string& node) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_grace_seconds(8);
  request.set_force(world_->dice.OneIn(3));
  absl::Status status;
  const bool answered = coordinator_->Call([&](ApiHandlers* api) {
    referee_->AsksToDrain(node);
    v1::DrainNodeResponse response;
    status = api->nodes.DrainNode({}, request, &response);
    world_->Log("drain ", node, request.force() ? " with force: " : ": ",
                status.ok() ? "ok" : status.message());
  });
  if (answered && status.ok()) referee_->Cordoned(node, true);
}

void Users::ResumeAll() {
  for (const std::string& node : coordinator_->CordonedNodes()) Cordon(node, false);
  if (JobBoard* const board = coordinator_->board()) {
    for (const auto& job : board->Live()) {
      const bool held = job->state() == v1::JOB_STATE_PAUSED || job->state() == v1::JOB_STATE_PAUSING;
      if (held && !job->pause().resumes_automatically()) Request("resume", job->id());
    }
  }
  world_->After(absl::Seconds(5), [this] { ResumeAll(); });
}

bool Users::CanNeverStart(const v1::Job& job, const std::set<std::string>& others) const {
  using Waiting = v1::Job::Waiting;
  if (job.state() != v1::JOB_STATE_QUEUED) return false;
  switch (job.waiting().code()) {
    case Waiting::CODE_AFTER_FAILED:
      return true;
    case Waiting::CODE_AFTER:
      return std::any_of(job.after().begin(), job.after().end(),
                         [&](const v1::Job::After& after) { return others.count(after.job()) != 0; });
    case Waiting::CODE_NODES:
    case Waiting::CODE_QUEUE_ORDER:
    case Waiting::CODE_QUOTA:
      return too_large_.count(job.id()) != 0;
    default:
      return false;
  }
}

std::string Users::UnfinishedReason() {
  std::string why = open_ > 0 ? "a submit has no reply" : "";
  const std::vector<std::string> accepted = referee_->Accepted();
  std::map<std::string, v1::Job> open;
  const bool there = coordinator_->Call([&](ApiHandlers* api) {
    for (const std::string& id : accepted) {
      const auto request = Of<v1::GetJobRequest>(id);
      v1::GetJobResponse response;
      const absl::Status status = api->jobs.GetJob({}, request, &response);
      const v1::Job& job = response.job();
      if (!status.ok()) {
        if (!referee_->IsDeleted(id))
          world_->ReportViolation(absl::StrCat("job ", id, ": lost: ", status.message()));
        continue;
      }
      if (!Ended(job.state())) open[id] = job;
    }
  });
  // Jobs that can never start, and jobs that depend on them.
  std::set<std::string> wait;
  for (size_t before = 1; before != wait.size();) {
    before = wait.size();
    for (const auto& [id, job] : open) {
      if (CanNeverStart(job, wait)) wait.insert(id);
    }
    if (wait.empty()) break;
  }
  for (const auto& [id, job] : open) {
    if (wait.count(id) != 0 || !why.empty()) continue;
    why = absl::StrCat("job ", id, " is ", v1::JobState_Name(job.state()), ": ", job.reason(),
                       "; waiting for ", v1::Job::Waiting::Code_Name(job.waiting().code()));
  }
  return there ? why : "the coordinator is down";
}

}  // namespace fsdpd::sim
