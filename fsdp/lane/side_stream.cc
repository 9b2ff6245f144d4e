#include "fsdp/lane/side_stream.h"

#include <utility>
#include <vector>

namespace fsdpd {
namespace {

class DeferredAside : public SideStream {
 public:
  absl::Status Start(std::function<absl::Status()> work) override {
    work_.push_back(std::move(work));
    return absl::OkStatus();
  }

  absl::Status Await() override {
    absl::Status status;
    for (const auto& work : std::exchange(work_, {})) {
      if (status.ok()) status = work();
    }
    return status;
  }

 private:
  std::vector<std::function<absl::Status()>> work_;
};

}  // namespace

std::unique_ptr<SideStream> MakeSideStream(std::optional<int> device_index) {
  if (device_index.has_value()) return MakeCudaSideStream(*device_index);
  return std::make_unique<DeferredAside>();
}

}  // namespace fsdpd
