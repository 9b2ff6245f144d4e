// The agent's gRPC stream to the coordinator: its threads, and reconnecting forever with backoff.
// attachment.h implements the protocol on it.
//
//   Start -> { Registration -> Register -> Welcome -> Connected(true) -> messages both ways
//              -> Connected(false) }
//   ... Shutdown: flushes queued messages for at most `flush`, then ends.
//
// When the Outbox is full, the link stops reading orders of the coordinator until the results of earlier
// orders were sent. A first registration that is rejected permanently (ALREADY_EXISTS: the node name is
// taken; INVALID_ARGUMENT; UNAUTHENTICATED or PERMISSION_DENIED: the certificate does not match this node) is
// passed to Refused and not retried. Later rejections are retried: the coordinator may still hold the old
// stream, and certificate files may be replaced. A revoked certificate is passed to Revoked every time.
//
// Several coordinators: one is the leader, the others reject the stream. The link tries each in turn and
// waits only after it has tried all of them.
//
// Two threads per stream, a reader and a writer. `handler` is called by one of them at a time and must not
// block on the link. Thread-safe.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/link/attachment.h"
#include "agent/link/coordinator_channel.h"
#include "agent/link/uplink.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/net/connect_error.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

class CoordinatorLink : public Uplink {
 public:
  using Handler = UplinkHandler;

  // `addresses`: parsed by ParseAddresses(). REQUIRES: they are valid. `handler` and `clock` must outlive the
  // link.
  CoordinatorLink(const std::string& addresses, Handler* handler, Clock* clock, TlsFiles tls = {},
                  int max_lifecycle = Outbox::kMaxLifecycle);
  ~CoordinatorLink() override;

  void Start();
  void Shutdown(absl::Duration flush);

  void SendLifecycle(v1::AgentMessage message) override { Send(&Outbox::AddLifecycle, std::move(message)); }
  void SendSaved(v1::AgentMessage message) override { Send(&Outbox::AddSaved, std::move(message)); }
  void SendStep(v1::AgentMessage message) override { Send(&Outbox::AddStep, std::move(message)); }
  void SendRendezvous(v1::AgentMessage message) override { Send(&Outbox::AddRendezvous, std::move(message)); }
  // Blocks while too many log messages are queued; false if the stream has ended.
  bool SendLogs(v1::LogLines lines);
  void ForgetRendezvous(const AttemptId& attempt) override;
  std::vector<v1::AgentMessage> Undelivered() override;
  bool attached() override;

 private:
  using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>;
  struct Session;

  void Run();
  bool AwaitChannel(grpc::Channel* channel);
  absl::Status RunStream(const std::shared_ptr<grpc::Channel>& channel);
  void ReadAll(Session* session);
  bool Take(Session* session, const v1::CoordinatorMessage& message);
  bool AwaitCapacity(Session* session);
  void WriteAll(Session* session);
  bool NextToWrite(Session* session, v1::AgentMessage* message, int64_t* ticket);
  void AwaitEnd(Session* session);
  bool IsRegistering() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(void (Outbox::*add)(v1::AgentMessage), v1::AgentMessage message);
  bool WaitBeforeRetry(absl::Duration wait);
  void LogReason(const absl::Status& status, bool attached);

  // One coordinator of the list. Used on the thread of the link once that runs.
  struct Coordinator {
    std::string address;
    CoordinatorChannel channel;
    std::string last_reason;
  };

  const OwnTls own_tls_;
  Handler* const handler_;
  Clock* const clock_;
  std::vector<Coordinator> coordinators_;
  size_t current_ = 0;  // Index of the coordinator to try.

  Mutex mutex_;
  CondVar changed_;
  Attachment attachment_ ABSL_GUARDED_BY(mutex_);
  Session* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Number of streams so far, which identifies the current one.
  int64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;  // The current stream was welcomed.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time flush_until_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace fsdpd
