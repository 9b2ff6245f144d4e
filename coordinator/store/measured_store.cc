#include "coordinator/store/measured_store.h"

#include <chrono>

namespace fsdpd {
namespace {

// Fenced writes do not count: every failover has some. They include writes that etcd did not answer before
// the lease ended; FsdpdNoLeader covers that case.
absl::StatusCode CodeOf(const absl::Status& status) {
  return !status.ok() && status == FencedError() ? absl::StatusCode::kFailedPrecondition : status.code();
}
absl::StatusCode CodeOf(const std::vector<absl::Status>& results) { return CodeOf(FirstError(results)); }
template <typename T>
absl::StatusCode CodeOf(const absl::StatusOr<T>& result) {
  return CodeOf(result.status());
}

class MeasuredStore final : public StateStore {
 public:
  MeasuredStore(std::unique_ptr<StateStore> store, Meters* meters)
      : store_(std::move(store)), meters_(meters) {}

  int64_t generation() const override { return store_->generation(); }
  const EventLog& events() const override { return store_->events(); }
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const std::string& request_id,
                                                     const v1::JobSpec& spec) override {
    return Timed("FindRequest", [&] { return store_->FindRequest(request_id, spec); });
  }
  absl::StatusOr<Inserted> Insert(const v1::Job& job) override {
    return Timed("Insert", [&] { return store_->Insert(job); });
  }
  absl::Status Update(const v1::Job& job) override {
    return Timed("Update", [&] { return store_->Update(job); });
  }
  std::vector<absl::Status> UpdateAll(const std::vector<const v1::Job*>& jobs) override {
    return Timed("UpdateAll", [&] { return store_->UpdateAll(jobs); });
  }
  absl::Status Delete(const std::string& id, const Events& news) override {
    return Timed("Delete", [&] { return store_->Delete(id, news); });
  }
  absl::StatusOr<std::vector<std::string>> ForgetEnded(const Retention& retention, absl::Time now,
                                                       int limit) override {
    return Timed("ForgetEnded", [&] { return store_->ForgetEnded(retention, now, limit); });
  }
  absl::StatusOr<v1::Job> Get(const std::string& id) override {
    return Timed("Get", [&] { return store_->Get(id); });
  }
  absl::StatusOr<JobPage> List(const JobQuery& query) override {
    return Timed("List", [&] { return store_->List(query); });
  }
  absl::StatusOr<std::vector<v1::Job>> LiveJobs() override {
    return Timed("LiveJobs", [&] { return store_->LiveJobs(); });
  }
  absl::Status SetCordon(const std::string& node, const v1::Cordon& cordon, const Events& news) override {
    return Timed("SetCordon", [&] { return store_->SetCordon(node, cordon, news); });
  }
  absl::Status RemoveCordon(const std::string& node, const Events& news) override {
    return Timed("RemoveCordon", [&] { return store_->RemoveCordon(node, news); });
  }
  absl::StatusOr<std::map<std::string, v1::Cordon>> Cordons() override {
    return Timed("Cordons", [&] { return store_->Cordons(); });
  }
  absl::Status UpdateNodes(const v1::ListNodesResponse& changed, const std::vector<std::string>& gone,
                           const Events& news) override {
    return Timed("UpdateNodes", [&] { return store_->UpdateNodes(changed, gone, news); });
  }
  absl::StatusOr<v1::ListNodesResponse> Nodes() override {
    return Timed("Nodes", [&] { return store_->Nodes(); });
  }

 private:
  template <typename Operation>
  auto Timed(const char* name, Operation operation) -> decltype(operation()) {
    const auto begin = std::chrono::steady_clock::now();
    auto result = operation();
    meters_->Stored(name, CodeOf(result), absl::FromChrono(std::chrono::steady_clock::now() - begin));
    return result;
  }

  const std::unique_ptr<StateStore> store_;
  Meters* const meters_;
};

}  // namespace

std::unique_ptr<StateStore> Measured(std::unique_ptr<StateStore> store, Meters* meters) {
  return std::make_unique<MeasuredStore>(std::move(store), meters);
}

}  // namespace fsdpd
