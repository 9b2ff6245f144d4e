// Table of the calls of the public API: one row for each method of the service Coordinator. Coordinator,
// standby, authorization, audit log, metrics and fsdpctl read it. A new call is a row here, and a handler.
//
// UNARY or STREAM (of responses), with these columns:
//
//   method    as in coordinator.proto; the messages are methodRequest and methodResponse
//   handler   member of ApiHandlers (coordinator/api/api_handlers.h) with a function `method`
//   standby   Answer: from the store; Redirect: with the leader's address (coordinator/api/standby_api.h)
//   role      the required role
//   own       the required role if the caller submitted the job in the request's `id`
//   effect    kReads, or kChanges: the call has side effects and is written to the audit log
//   retry     whether fsdpctl repeats a call that may have been executed (coordinator_client.cc)
//   reader    the limit of calls that hold a thread while they wait (coordinator/access/reader_streams.h)
//
// Planning a large model takes seconds of the coordinator's CPU, so viewers may not do it. TraceJob makes
// ranks write files on their nodes. PreflightNode reserves the node, and cordons one below the limits.
#pragma once

// clang-format off
#define FSDPD_API_TABLE(UNARY, STREAM)                                                                       \
  /*     method           handler  standby   role        own         effect    retry          reader */      \
  UNARY( GetVersion,      jobs,    Answer,   kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  UNARY( GetJob,          jobs,    Answer,   kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  UNARY( ListJobs,        jobs,    Answer,   kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  STREAM(WatchJob,        jobs,    Redirect, kViewer,    kViewer,    kReads,   Never,         kWatch)        \
  STREAM(TailLogs,        logs,    Redirect, kViewer,    kViewer,    kReads,   Never,         kLogs)         \
  UNARY( ListSteps,       steps,   Redirect, kViewer,    kViewer,    kReads,   Always,        kLogs)         \
  UNARY( GetStepTimeline, steps,   Redirect, kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  UNARY( ListNodes,       nodes,   Redirect, kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  UNARY( ListEvents,      events,  Answer,   kViewer,    kViewer,    kReads,   Always,        kNoReader)     \
  STREAM(WatchEvents,     events,  Redirect, kViewer,    kViewer,    kReads,   Never,         kWatch)        \
  UNARY( ValidateJob,     jobs,    Redirect, kSubmitter, kSubmitter, kReads,   Always,        kNoReader)     \
  UNARY( PlanJob,         plans,   Redirect, kSubmitter, kSubmitter, kReads,   Always,        kNoReader)     \
  UNARY( SearchPlans,     plans,   Redirect, kSubmitter, kSubmitter, kReads,   Always,        kNoReader)     \
  UNARY( SubmitJob,       jobs,    Redirect, kSubmitter, kSubmitter, kChanges, WithRequestId, kNoReader)     \
  UNARY( CancelJob,       changes, Redirect, kOperator,  kSubmitter, kChanges, WithoutEtag,   kNoReader)     \
  UNARY( PauseJob,        changes, Redirect, kOperator,  kSubmitter, kChanges, WithoutEtag,   kNoReader)     \
  UNARY( ResumeJob,       changes, Redirect, kOperator,  kSubmitter, kChanges, WithoutEtag,   kNoReader)     \
  UNARY( RetryJob,        changes, Redirect, kOperator,  kSubmitter, kChanges, WithoutEtag,   kNoReader)     \
  UNARY( DeleteJob,       changes, Redirect, kOperator,  kSubmitter, kChanges, Never,         kNoReader)     \
  STREAM(TraceJob,        traces,  Redirect, kOperator,  kSubmitter, kChanges, Never,         kLogs)         \
  UNARY( CordonNode,      nodes,   Redirect, kOperator,  kOperator,  kChanges, Always,        kNoReader)     \
  UNARY( UncordonNode,    nodes,   Redirect, kOperator,  kOperator,  kChanges, Always,        kNoReader)     \
  UNARY( DrainNode,       nodes,   Redirect, kOperator,  kOperator,  kChanges, Always,        kNoReader)     \
  UNARY( DeleteNode,      nodes,   Redirect, kOperator,  kOperator,  kChanges, Never,         kNoReader)     \
  UNARY( PreflightNode,   nodes,   Redirect, kOperator,  kOperator,  kChanges, Always,        kNoReader)
// clang-format on
