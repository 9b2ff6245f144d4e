#include "fsdp/model/package/compiled_call.h"

#include <absl/strings/str_cat.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <utility>

#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

using torch::inductor::AOTIModelContainerRunner;

class InductorCall : public CompiledCall {
 public:
  explicit InductorCall(std::unique_ptr<AOTIModelContainerRunner> runner) : runner_(std::move(runner)) {}

  std::vector<at::Tensor> Run(std::vector<at::Tensor> inputs) override {
    return runner_->boxed_run(std::move(inputs));
  }

 private:
  const std::unique_ptr<AOTIModelContainerRunner> runner_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CompiledCall>> CompiledCall::Load(const std::string& library,
                                                                 at::Device device) {
  // LibTorch registers one constructor per kind of device, so this needs no CUDA headers.
  const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
  const auto maker = makers.find(at::DeviceTypeName(device.type(), /*lower_case=*/true));
  if (maker == makers.end())
    return absl::FailedPreconditionError(
        absl::StrCat(library, ": LibTorch cannot load compiled models for ", device.str()));
  std::unique_ptr<CompiledCall> call;
  const absl::Status loaded = CatchTorch([&] {
    call = std::make_unique<InductorCall>(maker->second(library, /*num_models=*/1, device.str(),
                                                        /*bin_dir=*/"", /*run_single_threaded=*/true));
    return absl::OkStatus();
  });
  if (!loaded.ok())
    return absl::FailedPreconditionError(absl::StrCat(library, ": cannot be loaded: ", loaded.message()));
  return call;
}

}  // namespace fsdpd
