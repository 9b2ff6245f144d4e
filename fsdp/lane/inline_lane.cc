#include "fsdp/lane/clock_event.h"
#include "fsdp/lane/lane.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

class InlineLane : public Lane {
 public:
  void Submit(std::function<absl::Status()> work) override {
    if (error_.ok()) error_ = CatchTorch(work);
  }

  LaneEventPtr Record() override {
    auto event = std::make_shared<ClockEvent>();
    event->Reach(error_);
    return event;
  }

  void Wait(const LaneEventPtr& event) override {
    const absl::Status status = event->Await();
    if (error_.ok()) error_ = status;
  }

  absl::Status ShowProgress(std::atomic<uint64_t>* word) override {
    word_ = word;
    return absl::OkStatus();
  }

  void Progress(uint64_t value) override {
    if (word_ != nullptr && error_.ok()) word_->store(value, std::memory_order_release);
  }

  absl::Status Synchronize() override { return error_; }

 private:
  std::atomic<uint64_t>* word_ = nullptr;
  absl::Status error_;
};

}  // namespace

std::unique_ptr<Lane> MakeInlineLane() { return std::make_unique<InlineLane>(); }

}  // namespace fsdpd
