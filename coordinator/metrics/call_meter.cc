#include "coordinator/metrics/call_meter.h"

#include "base/check.h"

namespace fsdpd {
namespace {

bool Streams(const char* method) {
  const auto* service = v1::Job::descriptor()->file()->FindServiceByName("Coordinator");
  FSDPD_CHECK(service != nullptr);
  const auto* called = service->FindMethodByName(method);
  FSDPD_CHECK(called != nullptr);
  return called->server_streaming();
}

}  // namespace

CallMeter::CallMeter(Meters* meters, const char* method)
    : meters_(meters), method_(method), streams_(Streams(method)) {
  if (streams_) meters_->Opened(method_);
}

void CallMeter::End(const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (streams_) return meters_->Closed(method_, code);
  meters_->Called(method_, code, absl::FromChrono(std::chrono::steady_clock::now() - begin_));
}

}  // namespace fsdpd
