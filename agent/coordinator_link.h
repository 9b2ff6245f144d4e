// The agent's stream to the coordinator, over gRPC: its threads, and coming back for ever with back-off after
// whatever went wrong. What is said on it is attachment.h's.
//
//   Start -> { Registration -> Register -> Welcome -> Connected(true) -> messages both ways
//              -> Connected(false) }
//   ... Shutdown: sends what is waiting, for at most `flush`, and ends.
//
// What the agent has to say is queued in an Outbox, whose contract says what survives the loss of a stream.
// When it has no room, the coordinator is not read: its orders wait until what they led to so far has been
// told. A first attach that is refused for good (ALREADY_EXISTS: the node's name is taken; INVALID_ARGUMENT;
// UNAUTHENTICATED and PERMISSION_DENIED: its certificate is not this node's) goes to Refused and is not tried
// again; later refusals are retried, as a coordinator may still hold the old stream, and files be replaced.
// A revoked certificate goes to Revoked each time.
// A stream on which this agent could say nothing for its lease is given up, with what waits to be read.
//
// Of several coordinators one leads; the others refuse the stream. They are asked one after the other, and
// the wait is after all of them.
//
// Two threads per stream: one reads, one writes; `handler` is called by one of them at a time and must not
// block on the link. Thread safety: all methods.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/attachment.h"
#include "agent/coordinator_channel.h"
#include "agent/uplink.h"
#include "base/clock.h"
#include "base/connect_fault.h"
#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

class CoordinatorLink : public Uplink {
 public:
  using Handler = UplinkHandler;

  // `addresses`: as ParseAddresses() reads them; REQUIRES that it can. Both pointers outlive the link.
  CoordinatorLink(const std::string& addresses, Handler* handler, Clock* clock, TlsFiles tls = {},
                  int max_lifecycle = Outbox::kMaxLifecycle);
  ~CoordinatorLink() override;

  void Start();
  void Shutdown(absl::Duration flush);

  void SendLifecycle(v1::AgentMessage message) override;
  void SendSaved(v1::AgentMessage message) override;
  void SendStep(v1::AgentMessage message) override;
  void SendRendezvous(v1::AgentMessage message) override;
  // Waits while the stream is behind with logs; false when it has gone.
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
  bool AwaitRoom(Session* session);
  void WriteAll(Session* session);
  bool NextToWrite(Session* session, v1::AgentMessage* message, int64_t* ticket);
  void AwaitEnd(Session* session);
  bool IsRegistering() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WaitBeforeRetry(absl::Duration wait);
  void SayWhy(const absl::Status& status, bool attached);

  // One of the coordinators; the link's thread's own, once there is one.
  struct Place {
    std::string address;
    CoordinatorChannel channel;
    std::string last_reason;
  };

  const OwnTls own_tls_;
  Handler* const handler_;
  Clock* const clock_;
  std::vector<Place> places_;
  size_t asked_ = 0;  // Which of them.

  Mutex mutex_;
  CondVar changed_;
  Attachment attachment_ ABSL_GUARDED_BY(mutex_);
  Session* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;    // So far: the number of the present one, or of the last.
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;  // The present stream was welcomed.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time flush_until_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace fsdpd
