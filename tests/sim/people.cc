#include "tests/sim/people.h"

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

// Few kinds of them, so that plans are shared.
v1::JobSpec People::NewSpec(int number) {
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

void People::Share(Wish* wish) {
  Dice& dice = world_->dice;
  v1::SubmitJobRequest& request = wish->request;
  v1::JobSpec* const spec = request.mutable_spec();
  if (dice.OneIn(2)) spec->set_priority(dice.Below(3));
  if (dice.OneIn(2)) request.set_project(dice.OneIn(2) ? "red" : "blue");
  wish->waits = dice.OneIn(4);
  if (spec->checkpoint().dir().empty()) return;
  request.set_preemptible(dice.OneIn(2));
  if (spec->resources().nodes() != 2 || !dice.OneIn(3)) return;
  spec->mutable_restart()->mutable_elastic()->set_min_ranks(1);
  spec->mutable_restart()->mutable_elastic()->set_wait_seconds(5);
}

void People::SubmitSome(int jobs, absl::Duration within) {
  for (int i = 0; i < jobs; ++i) {
    Wish wish;
    wish.request.set_request_id(absl::StrCat("request-", i));
    *wish.request.mutable_spec() = NewSpec(i + 1);
    if (world_->shared()) Share(&wish);
    wishes_.push_back(std::move(wish));
    ++open_;
    world_->After(world_->dice.Between(absl::ZeroDuration(), within),
                  [this, i] { Submit(static_cast<size_t>(i)); });
  }
}

void People::Submit(size_t number) {
  Wish& wish = wishes_[number];
  const auto again = [&](absl::Duration most) {
    world_->After(world_->dice.Between(absl::Milliseconds(200), most), [this, number] { Submit(number); });
  };
  if (!wish.id.empty() && referee_->IsDeleted(wish.id)) return;
  // Chosen once: what is repeated is the same request.
  if (std::exchange(wish.waits, false)) {
    if (const std::string before = SomeJob(); !before.empty()) wish.request.add_after(before);
  }
  if (Lost()) return again(absl::Seconds(3));
  v1::SubmitJobResponse response;
  absl::Status status;
  const bool answered = coordinator_->Call(
      [&](JobService* service) { status = service->Submit(Caller{"somebody"}, wish.request, &response); });
  if (!answered || Lost()) return again(absl::Seconds(3));
  const bool known = !wish.id.empty();
  if (!status.ok()) {
    world_->Tell("submit of ", wish.request.request_id(), ": ", absl::StatusCodeToString(status.code()));
    if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) return again(absl::Seconds(3));
    if (known)
      world_->Violate(
          absl::StrCat("the repeat of ", wish.request.request_id(), " is refused: ", status.ToString()));
    --open_;
    return;
  }
  world_->Tell("submitted ", wish.request.request_id(), " is job ", response.job().id());
  wish.id = response.job().id();
  const int64_t nodes = wish.request.spec().resources().nodes();
  const auto quota = coordinator_->quotas().find(wish.request.project());
  if (nodes == kTooManyNodes || (quota != coordinator_->quotas().end() && nodes > quota->second))
    too_large_.insert(wish.id);
  referee_->Submitted(wish.request.request_id(), response.job());
  if (!known) --open_;
  if (world_->dice.OneIn(3)) again(absl::Seconds(40));
}

std::string People::SomeJob() {
  std::vector<std::string> ids;
  for (const Wish& wish : wishes_) {
    if (!wish.id.empty()) ids.push_back(wish.id);
  }
  return ids.empty() ? "" : ids[static_cast<size_t>(world_->dice.Below(static_cast<int>(ids.size())))];
}

void People::AskSomething() {
  static constexpr const char* kAsked[] = {"cancel", "pause", "pause", "resume", "resume", "retry", "delete"};
  if (world_->dice.OneIn(5)) {
    const std::string& node =
        nodes_[static_cast<size_t>(world_->dice.Below(static_cast<int>(nodes_.size())))];
    return world_->dice.OneIn(3) ? Drain(node) : Cordon(node, world_->dice.OneIn(2));
  }
  const std::string id = SomeJob();
  if (!id.empty()) Ask(kAsked[world_->dice.Below(7)], id);
}

void People::Ask(const std::string& what, const std::string& id) {
  if (Lost()) return;
  grpc::Status status;
  v1::Job job;
  const int64_t grace_s = world_->dice.OneIn(3) ? 0 : 8;
  const bool answered = coordinator_->Call([&](JobService* service) {
    referee_->AsksFor(id, what);
    const auto take = [&](const auto& response) { job = response.job(); };
    if (what == "cancel") {
      auto request = Of<v1::CancelJobRequest>(id);
      request.set_grace_seconds(grace_s);
      v1::CancelJobResponse response;
      status = service->CancelJob(nullptr, &request, &response);
      take(response);
    } else if (what == "pause") {
      auto request = Of<v1::PauseJobRequest>(id);
      request.set_grace_seconds(grace_s);
      v1::PauseJobResponse response;
      status = service->PauseJob(nullptr, &request, &response);
      take(response);
    } else if (what == "resume") {
      const auto request = Of<v1::ResumeJobRequest>(id);
      v1::ResumeJobResponse response;
      status = service->ResumeJob(nullptr, &request, &response);
    } else if (what == "retry") {
      const auto request = Of<v1::RetryJobRequest>(id);
      v1::RetryJobResponse response;
      status = service->RetryJob(nullptr, &request, &response);
    } else {
      const auto request = Of<v1::DeleteJobRequest>(id);
      v1::DeleteJobResponse response;
      status = service->DeleteJob(nullptr, &request, &response);
    }
    world_->Tell("asked to ", what, " ", id, ": ", status.ok() ? "yes" : status.error_message());
  });
  if (answered && status.ok() && job.has_spec()) referee_->Answered(what, job);
}

void People::Cordon(const std::string& node, bool on) {
  grpc::Status status;
  // A call that is not answered may have been heard.
  if (!on) referee_->Cordoned(node, false);
  const bool answered = coordinator_->Call([&](JobService* service) {
    if (on) {
      v1::CordonNodeRequest request;
      request.set_node(node);
      request.set_reason("somebody looks at it");
      v1::CordonNodeResponse response;
      status = service->CordonNode(nullptr, &request, &response);
    } else {
      v1::UncordonNodeRequest request;
      request.set_node(node);
      v1::UncordonNodeResponse response;
      status = service->UncordonNode(nullptr, &request, &response);
    }
    world_->Tell(on ? "cordon " : "uncordon ", node, ": ", status.ok() ? "yes" : status.error_message());
  });
  if (answered && status.ok() && on) referee_->Cordoned(node, true);
}

void People::Drain(const std::string& node) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_grace_seconds(8);
  request.set_force(world_->dice.OneIn(3));
  grpc::Status status;
  const bool answered = coordinator_->Call([&](JobService* service) {
    referee_->AsksToDrain(node);
    v1::DrainNodeResponse response;
    status = service->DrainNode(nullptr, &request, &response);
    world_->Tell("drain ", node, request.force() ? " with force: " : ": ",
                 status.ok() ? "yes" : status.error_message());
  });
  if (answered && status.ok()) referee_->Cordoned(node, true);
}

void People::LetAllGoOn() {
  for (const std::string& node : coordinator_->CordonedNodes()) Cordon(node, false);
  if (JobBoard* const board = coordinator_->board()) {
    for (const auto& job : board->Live()) {
      const bool held = job->state() == v1::JOB_STATE_PAUSED || job->state() == v1::JOB_STATE_PAUSING;
      if (held && !job->pause().resumes()) Ask("resume", job->id());
    }
  }
  world_->After(absl::Seconds(5), [this] { LetAllGoOn(); });
}

bool People::WaitsForGood(const v1::Job& job, const std::set<std::string>& others) const {
  using Waiting = v1::Job::Waiting;
  if (job.state() != v1::JOB_STATE_QUEUED) return false;
  switch (job.waiting().code()) {
    case Waiting::CODE_AFTER_FAILED:
      return true;
    case Waiting::CODE_AFTER:
      return std::any_of(job.after().begin(), job.after().end(),
                         [&](const v1::Job::After& after) { return others.count(after.job()) != 0; });
    case Waiting::CODE_NODES:
    case Waiting::CODE_BEHIND:
    case Waiting::CODE_QUOTA:
      return too_large_.count(job.id()) != 0;
    default:
      return false;
  }
}

std::string People::WhyNotOver() {
  std::string why = open_ > 0 ? "a submit is not answered" : "";
  const std::vector<std::string> accepted = referee_->Accepted();
  std::map<std::string, v1::Job> open;
  const bool there = coordinator_->Call([&](JobService* service) {
    for (const std::string& id : accepted) {
      const auto request = Of<v1::GetJobRequest>(id);
      v1::GetJobResponse response;
      const grpc::Status status = service->GetJob(nullptr, &request, &response);
      const v1::Job& job = response.job();
      if (!status.ok()) {
        if (!referee_->IsDeleted(id))
          world_->Violate(absl::StrCat("job ", id, " is lost: ", status.error_message()));
        continue;
      }
      if (!Ended(job.state())) open[id] = job;
    }
  });
  // Those that wait for good, and those that come after them.
  std::set<std::string> wait;
  for (size_t before = 1; before != wait.size();) {
    before = wait.size();
    for (const auto& [id, job] : open) {
      if (WaitsForGood(job, wait)) wait.insert(id);
    }
    if (wait.empty()) break;
  }
  for (const auto& [id, job] : open) {
    if (wait.count(id) != 0 || !why.empty()) continue;
    why = absl::StrCat("job ", id, " is ", v1::JobState_Name(job.state()), ": ", job.reason(),
                       "; it waits for ", v1::Job::Waiting::Code_Name(job.waiting().code()));
  }
  return there ? why : "the coordinator is away";
}

}  // namespace fsdpd::sim
