#include "client/coordinator_client.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/time/clock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/address.h"
#include "base/connect_fault.h"
#include "base/limits.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kReasonWithin = absl::Milliseconds(200);
// Of an error's details, with room for a coordinator that says more than this one's 4 KiB.
constexpr int kMaxMetadataBytes = 64 << 10;
constexpr int kKeepaliveMs = 10'000;
constexpr size_t kMaxPlaces = 16;
constexpr int kMovesAtOnce = 4;  // From one coordinator to another without a pause.
constexpr absl::Duration kLongestConnect = absl::Seconds(5);
// How long a call or stream waits for a channel whose last connect failed; other coordinators may be up.
constexpr absl::Duration kReconnectWait = absl::Seconds(1);
constexpr absl::Duration kReconnectWaitOfSeveral = absl::Milliseconds(250);
constexpr absl::Duration kConnectSlice = absl::Milliseconds(100);  // How late an interrupt may be seen.

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

// gRPC 1.51 polls a connecting socket only from a thread that waits for the channel or inside a call
// (otherwise every 5 s), and after a failed connect a call returns immediately. A TCP connect needs no poll,
// but a TLS handshake does: with failing calls and sleeps only, each handshake would miss its deadline.
void AwaitReconnect(grpc::Channel* channel, absl::Time until, Interrupt* interrupt) {
  if (channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  for (absl::Time now = absl::Now(); now < until && !(interrupt && interrupt->fired()); now = absl::Now())
    if (channel->WaitForConnected(absl::ToChronoTime(std::min(now + kConnectSlice, until)))) return;
}

absl::Status Silence(const absl::Status& status) {
  return IsSilence(status) ? absl::DeadlineExceededError("no answer in time") : status;
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

// A channel begins threads, which who calls nobody (--offline) does not need.
struct CoordinatorClient::Place {
  Place(std::string where, const Options& options) : address(std::move(where)), options_(options) {}

  grpc::Channel* channel() {
    Open();
    return channel_.get();
  }
  v1::Coordinator::Stub* stub() {
    Open();
    return stub_.get();
  }

  const std::string address;

 private:
  void Open() {
    std::call_once(opened_, [this] {
      channel_ = MakeChannel(address, options_);
      stub_ = v1::Coordinator::NewStub(channel_);
    });
  }

  const Options options_;
  std::once_flag opened_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

// What is no address is taken as it is: gRPC says of it what is wrong.
CoordinatorClient::CoordinatorClient(std::string addresses, Options options)
    : address_(std::move(addresses)), options_(std::move(options)) {
  const absl::StatusOr<std::vector<std::string>> several = ParseAddresses(address_);
  for (const std::string& each : several.ok() ? *several : std::vector<std::string>{address_})
    places_.push_back(std::make_shared<Place>(each, options_));
}

CoordinatorClient::~CoordinatorClient() = default;

std::shared_ptr<CoordinatorClient::Place> CoordinatorClient::Asked() {
  MutexLock lock(&mutex_);
  return places_[asked_];
}

std::shared_ptr<CoordinatorClient::Place> CoordinatorClient::Reconnected(absl::Time deadline,
                                                                         Interrupt* interrupt) {
  std::shared_ptr<Place> place;
  absl::Duration wait = kReconnectWait;
  {
    MutexLock lock(&mutex_);
    place = places_[asked_];
    if (places_.size() > 1) wait = kReconnectWaitOfSeveral;
  }
  AwaitReconnect(place->channel(), std::min(absl::Now() + wait, deadline), interrupt);
  return place;
}

bool CoordinatorClient::Move(const Place& asked, const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const bool stands_by = ReadDetail(status, &info) && info.reason() == "NOT_LEADER";
  const bool gone = !stands_by && (absl::IsUnavailable(status) || IsSilence(status));
  if (!stands_by && !gone) return false;
  const auto leader = info.metadata().find("leader");
  MutexLock lock(&mutex_);
  if (places_[asked_].get() != &asked) return true;  // Another thread was faster.
  if (!stands_by || leader == info.metadata().end()) {
    asked_ = (asked_ + 1) % places_.size();
    return gone && places_.size() > 1;
  }
  const auto known = std::find_if(places_.begin(), places_.end(),
                                  [&](const auto& place) { return place->address == leader->second; });
  asked_ = static_cast<size_t>(known - places_.begin());
  if (known == places_.end()) {
    if (places_.size() >= kMaxPlaces) asked_ = 0;
    if (places_.size() < kMaxPlaces) places_.push_back(std::make_shared<Place>(leader->second, options_));
  }
  return places_[asked_].get() != &asked;
}

absl::Status CoordinatorClient::Connect() {
  const absl::Time deadline = absl::Now() + options_.call_timeout;
  size_t places = 0;
  {
    MutexLock lock(&mutex_);
    places = places_.size();
  }
  absl::Status status;
  for (size_t tried = 0; tried < places; ++tried) {
    const std::shared_ptr<Place> place = Asked();
    // The last one is waited for as one that is alone.
    const bool last = tried + 1 == places;
    status =
        ConnectTo(place.get(), std::min(absl::Now() + options_.connect_timeout / (last ? 1 : 2), deadline),
                  last ? deadline : absl::Now());
    if (status.ok() || !Move(*place, status)) return status;
  }
  return status;
}

// A call as well as a connection: a coordinator that was stopped after the handshake is connected, and a
// stream to it would wait for keepalive to notice.
absl::Status CoordinatorClient::ConnectTo(Place* place, absl::Time until, absl::Time deadline) {
  while (true) {
    const bool connected = place->channel()->WaitForConnected(absl::ToChronoTime(until));
    const absl::Duration patience =
        connected ? std::min(options_.connect_timeout, options_.call_timeout) : kReasonWithin;
    // A call on a channel that failed tells at once why it failed; on one that still tries, it waits too.
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::max(deadline, absl::Now() + patience)));
    v1::GetVersionResponse response;
    const absl::Status status = FromGrpc(place->stub()->GetVersion(&context, {}, &response));
    // An answer of any kind is one: what it is will be told of the call that was meant.
    if (!absl::IsUnavailable(status) && !IsSilence(status)) return absl::OkStatus();
    if (!IsSilence(status))
      return absl::UnavailableError(
          WordsOfConnectFault(status.message(), options_.trusted.empty() ? OwnTls::kNone : OwnTls::kTrust));
    if (absl::Now() >= deadline) return Silence(status);
    until = std::min(absl::Now() + options_.connect_timeout, deadline);
  }
}

template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> CoordinatorClient::CallWithin(absl::Duration timeout, Method method,
                                                       const Request& request, bool idempotent) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = kFirstPause;
  for (int moves = 0;;) {
    const std::shared_ptr<Place> place = Reconnected(deadline, nullptr);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    Response response;
    absl::Status status = FromGrpc((place->stub()->*method)(&context, request, &response));
    if (status.ok()) return response;
    // Nobody here cancels a call that has one answer.
    if (absl::IsCancelled(status))
      status = absl::UnavailableError("the coordinator stopped before it answered");
    const bool not_done = ReasonOf(status) == "NOT_LEADER";
    const bool again = absl::IsUnavailable(status) && ((idempotent && options_.repeats) || not_done);
    const bool elsewhere = Move(*place, status);
    const bool at_once = elsewhere && moves < kMovesAtOnce;
    const absl::Duration wait = at_once ? absl::ZeroDuration() : PauseAfter(status, pause);
    if (!again || absl::Now() + wait >= deadline) return Silence(status);
    moves = at_once ? moves + 1 : 0;
    if (at_once) continue;
    absl::SleepFor(wait);
    pause = std::min(2 * pause, kLongestPause);
  }
}

template <typename Response, typename Open>
absl::Status CoordinatorClient::ReadStream(const Open& open, Interrupt* interrupt,
                                           const std::function<void(const Response&)>& on_message) {
  for (int moves = 0;; ++moves) {
    const std::shared_ptr<Place> place = Reconnected(absl::InfiniteFuture(), interrupt);
    // Shared with the interrupt's action, which may still run while this function returns.
    const auto context = std::make_shared<grpc::ClientContext>();
    Interrupt::Scope scope(interrupt, [context] { context->TryCancel(); });
    const auto reader = open(place->stub(), context.get());
    Response message;
    while (reader->Read(&message)) on_message(message);
    const absl::Status status = FromGrpc(reader->Finish());
    if (interrupt->fired()) return absl::CancelledError("interrupted");
    const bool elsewhere = Move(*place, status);
    if (!elsewhere || ReasonOf(status) != "NOT_LEADER" || moves >= kMovesAtOnce) return status;
  }
}

absl::StatusOr<v1::SubmitJobResponse> CoordinatorClient::SubmitJob(const v1::SubmitJobRequest& request) {
  return Call<v1::SubmitJobRequest, v1::SubmitJobResponse>(&v1::Coordinator::Stub::SubmitJob, request,
                                                           !request.request_id().empty());
}

absl::StatusOr<v1::ValidateJobResponse> CoordinatorClient::ValidateJob(
    const v1::ValidateJobRequest& request) {
  return Call<v1::ValidateJobRequest, v1::ValidateJobResponse>(&v1::Coordinator::Stub::ValidateJob, request);
}

absl::StatusOr<v1::PlanJobResponse> CoordinatorClient::PlanJob(const v1::PlanJobRequest& request) {
  return Call<v1::PlanJobRequest, v1::PlanJobResponse>(&v1::Coordinator::Stub::PlanJob, request);
}

absl::StatusOr<v1::SearchPlansResponse> CoordinatorClient::SearchPlans(
    const v1::SearchPlansRequest& request) {
  return CallWithin<v1::SearchPlansRequest, v1::SearchPlansResponse>(
      options_.search_timeout, &v1::Coordinator::Stub::SearchPlans, request, /*idempotent=*/true);
}

absl::StatusOr<v1::GetJobResponse> CoordinatorClient::GetJob(const v1::GetJobRequest& request) {
  return Call<v1::GetJobRequest, v1::GetJobResponse>(&v1::Coordinator::Stub::GetJob, request);
}

absl::StatusOr<v1::ListJobsResponse> CoordinatorClient::ListJobs(const v1::ListJobsRequest& request) {
  return Call<v1::ListJobsRequest, v1::ListJobsResponse>(&v1::Coordinator::Stub::ListJobs, request);
}

absl::StatusOr<v1::CancelJobResponse> CoordinatorClient::CancelJob(const v1::CancelJobRequest& request) {
  return Call<v1::CancelJobRequest, v1::CancelJobResponse>(&v1::Coordinator::Stub::CancelJob, request,
                                                           request.etag().empty());
}

absl::StatusOr<v1::PauseJobResponse> CoordinatorClient::PauseJob(const v1::PauseJobRequest& request) {
  return Call<v1::PauseJobRequest, v1::PauseJobResponse>(&v1::Coordinator::Stub::PauseJob, request,
                                                         request.etag().empty());
}

absl::StatusOr<v1::ResumeJobResponse> CoordinatorClient::ResumeJob(const v1::ResumeJobRequest& request) {
  return Call<v1::ResumeJobRequest, v1::ResumeJobResponse>(&v1::Coordinator::Stub::ResumeJob, request,
                                                           request.etag().empty());
}

absl::StatusOr<v1::RetryJobResponse> CoordinatorClient::RetryJob(const v1::RetryJobRequest& request) {
  return Call<v1::RetryJobRequest, v1::RetryJobResponse>(&v1::Coordinator::Stub::RetryJob, request,
                                                         request.etag().empty());
}

absl::StatusOr<v1::DeleteJobResponse> CoordinatorClient::DeleteJob(const v1::DeleteJobRequest& request) {
  return Call<v1::DeleteJobRequest, v1::DeleteJobResponse>(&v1::Coordinator::Stub::DeleteJob, request, false);
}

absl::StatusOr<v1::ListNodesResponse> CoordinatorClient::ListNodes(const v1::ListNodesRequest& request) {
  return Call<v1::ListNodesRequest, v1::ListNodesResponse>(&v1::Coordinator::Stub::ListNodes, request);
}

absl::StatusOr<v1::CordonNodeResponse> CoordinatorClient::CordonNode(const v1::CordonNodeRequest& request) {
  return Call<v1::CordonNodeRequest, v1::CordonNodeResponse>(&v1::Coordinator::Stub::CordonNode, request);
}

absl::StatusOr<v1::PreflightNodeResponse> CoordinatorClient::PreflightNode(
    const v1::PreflightNodeRequest& request) {
  return Call<v1::PreflightNodeRequest, v1::PreflightNodeResponse>(&v1::Coordinator::Stub::PreflightNode,
                                                                   request);
}

absl::StatusOr<v1::UncordonNodeResponse> CoordinatorClient::UncordonNode(
    const v1::UncordonNodeRequest& request) {
  return Call<v1::UncordonNodeRequest, v1::UncordonNodeResponse>(&v1::Coordinator::Stub::UncordonNode,
                                                                 request);
}

absl::StatusOr<v1::DrainNodeResponse> CoordinatorClient::DrainNode(const v1::DrainNodeRequest& request) {
  return Call<v1::DrainNodeRequest, v1::DrainNodeResponse>(&v1::Coordinator::Stub::DrainNode, request);
}

absl::StatusOr<v1::DeleteNodeResponse> CoordinatorClient::DeleteNode(const v1::DeleteNodeRequest& request) {
  return Call<v1::DeleteNodeRequest, v1::DeleteNodeResponse>(&v1::Coordinator::Stub::DeleteNode, request,
                                                             /*idempotent=*/false);
}

absl::StatusOr<v1::ListEventsResponse> CoordinatorClient::ListEvents(const v1::ListEventsRequest& request) {
  return Call<v1::ListEventsRequest, v1::ListEventsResponse>(&v1::Coordinator::Stub::ListEvents, request);
}
absl::StatusOr<v1::ListStepsResponse> CoordinatorClient::ListSteps(const v1::ListStepsRequest& request) {
  return Call<v1::ListStepsRequest, v1::ListStepsResponse>(&v1::Coordinator::Stub::ListSteps, request);
}

absl::StatusOr<v1::GetStepCourseResponse> CoordinatorClient::GetStepCourse(
    const v1::GetStepCourseRequest& request) {
  return Call<v1::GetStepCourseRequest, v1::GetStepCourseResponse>(&v1::Coordinator::Stub::GetStepCourse,
                                                                   request);
}

absl::StatusOr<v1::GetVersionResponse> CoordinatorClient::GetVersion(const v1::GetVersionRequest& request) {
  return Call<v1::GetVersionRequest, v1::GetVersionResponse>(&v1::Coordinator::Stub::GetVersion, request);
}

absl::Status CoordinatorClient::WatchJob(const v1::WatchJobRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::WatchJobResponse&)>& on_update) {
  const auto open = [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->WatchJob(context, request);
  };
  return ReadStream<v1::WatchJobResponse>(open, interrupt, on_update);
}

absl::Status CoordinatorClient::WatchEvents(
    const v1::WatchEventsRequest& request, Interrupt* interrupt,
    const std::function<void(const v1::WatchEventsResponse&)>& on_update) {
  const auto open = [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->WatchEvents(context, request);
  };
  return ReadStream<v1::WatchEventsResponse>(open, interrupt, on_update);
}

absl::Status CoordinatorClient::TailLogs(const v1::TailLogsRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::TailLogsResponse&)>& on_line) {
  const auto open = [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->TailLogs(context, request);
  };
  return ReadStream<v1::TailLogsResponse>(open, interrupt, on_line);
}

absl::Status CoordinatorClient::TraceJob(const v1::TraceJobRequest& request, Interrupt* interrupt,
                                         const std::function<void(const v1::TraceJobResponse&)>& on_update) {
  const auto open = [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->TraceJob(context, request);
  };
  return ReadStream<v1::TraceJobResponse>(open, interrupt, on_update);
}

}  // namespace fsdpd
