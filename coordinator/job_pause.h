// What it means that a job is paused: which jobs may be, and what PAUSED promises. The ranks save after the
// same step and leave, as those of a cancelled job do; PAUSED is said when all are gone, with the step of the
// newest checkpoint that was committed, from which the job goes on. Nothing keeps ranks that cannot save in
// time from leaving: steps that are lost so are counted, with the reason, in the same word.
//
// Of a node that is lost nobody knows whether ranks train on there, and save: the job stays PAUSING until its
// agent is back, however long that takes. Somebody who knows better resumes or cancels it.
//
// An attempt that was paused counts against nothing; one that had failed by itself before counts.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/attempt_facts.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Why the job may not be paused, and what would help; empty where it may be, and where it is already.
// `grace_ms`: 0 asks for no save.
std::string WhyNotPaused(const v1::Job& job, int64_t grace_ms);

// What a job that is PAUSING comes to once its ranks are gone. `why`: nothing was saved, as far as somebody
// knows; of no interest where all was. `unconfirmed`: lost nodes with ranks that may not be gone, of which no
// more is known than what they said before.
v1::Job::Pause PauseOf(const v1::Job& job, const std::string& why,
                       const std::vector<std::string>& unconfirmed = {});
std::string PausedWords(const v1::Job::Pause& pause);
// Of a job that stays PAUSING for these nodes.
std::string UnconfirmedWords(const std::vector<std::string>& nodes);

// Of the GPUs of an attempt that is gone.
void AddFreedMemory(const std::vector<NodePart>& parts, v1::Job::Pause* pause);

// What becomes of a job that waits for ranks to leave on nodes that do not say so; "" if it is STOPPING.
std::string WhatFollows(const v1::Job& job);

// Of a cancel of a job that has no ranks: from where it could be gone on with, if it has ever had some.
// REQUIRES: QUEUED or PAUSED.
std::string IdleCancelWords(const v1::Job& job);

// Edits of a transition to PAUSED: of a job whose ranks are gone, and of one that had none.
void KeepPause(const v1::Job::Pause& pause, v1::Job* job);
void KeepHold(v1::Job* job);

}  // namespace fsdpd
