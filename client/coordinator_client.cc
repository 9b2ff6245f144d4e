#include "client/coordinator_client.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/time/clock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "base/connect_fault.h"
#include "base/limits.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kReasonWithin = absl::Milliseconds(200);
// Of an error's details, with room for a coordinator that says more than this one's 4 KiB.
constexpr int kMaxMetadataBytes = 64 << 10;
constexpr int kKeepaliveMs = 10'000;
constexpr absl::Duration kLongestConnect = absl::Seconds(5);

template <typename Detail>
std::string UrlOf() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
bool ReadDetail(const absl::Status& status, Detail* detail) {
  const auto payload = status.GetPayload(UrlOf<Detail>());
  return payload.has_value() && detail->ParseFromString(std::string(*payload));
}

absl::Status FromGrpc(const grpc::Status& wire) {
  if (wire.ok()) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(wire.error_code()), wire.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(wire.error_details())) return status;
  for (const auto& detail : details.details())
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  return status;
}

absl::Duration PauseAfter(const absl::Status& status, absl::Duration otherwise) {
  google::rpc::RetryInfo retry;
  if (!ReadDetail(status, &retry)) return otherwise;
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

// gRPC itself sends call credentials over nothing but TLS.
std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const CoordinatorClient::Options& options) {
  if (options.trusted.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.trusted;
  const std::shared_ptr<grpc::ChannelCredentials> channel = grpc::SslCredentials(ssl);
  if (options.token.empty()) return channel;
  return grpc::CompositeChannelCredentials(channel, grpc::AccessTokenCredentials(options.token));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const CoordinatorClient::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxRpcBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // The defaults (1 s growing to 2 min) are for fleets of servers; a person waits for this one.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // For how long a connection is tried: behind an address that swallows packets, a name may have another that
  // answers, and there is time for it too.
  arguments.SetInt(
      GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(std::min(options.call_timeout / 3, kLongestConnect))));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Finds a coordinator that stands still under a stream, on which nothing else would be sent.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  // An address on a command line is meant as it stands; no proxy stands between the parts of one cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, CredentialsOf(options), arguments);
}

// Who takes the connection and says nothing (a process that is stopped, a host behind a wall that swallows
// packets) is there as far as anybody can tell, and did not answer in time. gRPC has words for it, and no
// code; of TLS it says more where the other side ended it.
bool IsSilence(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ||
         (absl::IsUnavailable(status) && (absl::StrContains(status.message(), "timed out") ||
                                          absl::StrContains(status.message(), "Timeout occurred") ||
                                          absl::EndsWith(status.message(), "Handshake read failed") ||
                                          absl::StrContains(status.message(), "keepalive")));
}

absl::Status Silence(const absl::Status& status) {
  return IsSilence(status) ? absl::DeadlineExceededError("no answer in time") : status;
}

template <typename Request, typename Response>
using CallStub = grpc::Status (v1::Coordinator::Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Request, typename Response>
absl::StatusOr<Response> Call(v1::Coordinator::Stub* stub, CallStub<Request, Response> method,
                              const Request& request, absl::Duration timeout, bool idempotent) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = kFirstPause;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    Response response;
    const absl::Status status = FromGrpc((stub->*method)(&context, request, &response));
    if (status.ok()) return response;
    const absl::Duration wait = PauseAfter(status, pause);
    if (!idempotent || !absl::IsUnavailable(status) || absl::Now() + wait >= deadline) return Silence(status);
    absl::SleepFor(wait);
    pause = std::min(2 * pause, kLongestPause);
  }
}

template <typename Response, typename Open>
absl::Status ReadStream(const Open& open, Interrupt* interrupt,
                        const std::function<void(const Response&)>& on_message) {
  // Shared with the interrupt's action, which may still run while this function returns.
  const auto context = std::make_shared<grpc::ClientContext>();
  Interrupt::Scope scope(interrupt, [context] { context->TryCancel(); });
  const auto reader = open(context.get());
  Response message;
  while (reader->Read(&message)) on_message(message);
  const absl::Status status = FromGrpc(reader->Finish());
  return interrupt->fired() ? absl::CancelledError("interrupted") : status;
}

}  // namespace

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return ReadDetail(status, &info) ? info.reason() : "";
}

Violations FieldViolationsOf(const absl::Status& status) {
  google::rpc::BadRequest bad;
  Violations violations;
  v1::SpecFaults faults;
  if (ReadDetail(status, &faults)) {
    for (const v1::Fault& f : faults.faults()) {
      violations.push_back({f.rule(), FaultLevel::kError, f.field(), f.reason(), f.fix(), "", ""});
    }
    return violations;
  }
  if (!ReadDetail(status, &bad)) return violations;
  for (const auto& field : bad.field_violations()) {
    violations.push_back({"", FaultLevel::kError, field.field(), field.description(), "", "", ""});
  }
  return violations;
}

CoordinatorClient::CoordinatorClient(std::string address, Options options)
    : address_(std::move(address)),
      options_(std::move(options)),
      channel_(MakeChannel(address_, options_)),
      stub_(v1::Coordinator::NewStub(channel_)) {}

absl::Status CoordinatorClient::Connect() {
  const absl::Time deadline = absl::Now() + options_.call_timeout;
  while (true) {
    if (channel_->WaitForConnected(
            absl::ToChronoTime(std::min(absl::Now() + options_.connect_timeout, deadline)))) {
      return absl::OkStatus();
    }
    // A call on a channel that failed tells at once why it failed; on one that still tries, it waits too.
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::max(deadline, absl::Now() + kReasonWithin)));
    v1::GetVersionResponse response;
    const absl::Status status = FromGrpc(stub_->GetVersion(&context, {}, &response));
    // An answer of any kind is one: what it is will be told of the call that was meant.
    if (!absl::IsUnavailable(status) && !IsSilence(status)) return absl::OkStatus();
    if (!IsSilence(status))
      return absl::UnavailableError(
          WordsOfConnectFault(status.message(), options_.trusted.empty() ? OwnTls::kNone : OwnTls::kTrust));
    if (absl::Now() >= deadline) return Silence(status);
  }
}

absl::StatusOr<v1::SubmitJobResponse> CoordinatorClient::SubmitJob(const v1::SubmitJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::SubmitJob, request, options_.call_timeout,
              !request.request_id().empty());
}

absl::StatusOr<v1::ValidateJobResponse> CoordinatorClient::ValidateJob(
    const v1::ValidateJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::ValidateJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::PlanJobResponse> CoordinatorClient::PlanJob(const v1::PlanJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::PlanJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::SearchPlansResponse> CoordinatorClient::SearchPlans(
    const v1::SearchPlansRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::SearchPlans, request, options_.call_timeout, true);
}

absl::StatusOr<v1::GetJobResponse> CoordinatorClient::GetJob(const v1::GetJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::GetJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::ListJobsResponse> CoordinatorClient::ListJobs(const v1::ListJobsRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::ListJobs, request, options_.call_timeout, true);
}

absl::StatusOr<v1::CancelJobResponse> CoordinatorClient::CancelJob(const v1::CancelJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::CancelJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::PauseJobResponse> CoordinatorClient::PauseJob(const v1::PauseJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::PauseJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::ResumeJobResponse> CoordinatorClient::ResumeJob(const v1::ResumeJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::ResumeJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::RetryJobResponse> CoordinatorClient::RetryJob(const v1::RetryJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::RetryJob, request, options_.call_timeout, true);
}

absl::StatusOr<v1::DeleteJobResponse> CoordinatorClient::DeleteJob(const v1::DeleteJobRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::DeleteJob, request, options_.call_timeout, false);
}

absl::StatusOr<v1::ListNodesResponse> CoordinatorClient::ListNodes(const v1::ListNodesRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::ListNodes, request, options_.call_timeout, true);
}

absl::StatusOr<v1::CordonNodeResponse> CoordinatorClient::CordonNode(const v1::CordonNodeRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::CordonNode, request, options_.call_timeout, true);
}

absl::StatusOr<v1::PreflightNodeResponse> CoordinatorClient::PreflightNode(
    const v1::PreflightNodeRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::PreflightNode, request, options_.call_timeout, true);
}

absl::StatusOr<v1::UncordonNodeResponse> CoordinatorClient::UncordonNode(
    const v1::UncordonNodeRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::UncordonNode, request, options_.call_timeout, true);
}

absl::StatusOr<v1::GetVersionResponse> CoordinatorClient::GetVersion(const v1::GetVersionRequest& request) {
  return Call(stub_.get(), &v1::Coordinator::Stub::GetVersion, request, options_.call_timeout, true);
}

absl::Status CoordinatorClient::WatchJob(const v1::WatchJobRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::WatchJobResponse&)>& on_update) {
  const auto open = [&](grpc::ClientContext* context) { return stub_->WatchJob(context, request); };
  return ReadStream<v1::WatchJobResponse>(open, interrupt, on_update);
}

absl::Status CoordinatorClient::TailLogs(const v1::TailLogsRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::TailLogsResponse&)>& on_line) {
  const auto open = [&](grpc::ClientContext* context) { return stub_->TailLogs(context, request); };
  return ReadStream<v1::TailLogsResponse>(open, interrupt, on_line);
}

absl::Status CoordinatorClient::TraceJob(const v1::TraceJobRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::TraceJobResponse&)>& on_update) {
  const auto open = [&](grpc::ClientContext* context) { return stub_->TraceJob(context, request); };
  return ReadStream<v1::TraceJobResponse>(open, interrupt, on_update);
}

}  // namespace fsdpd
