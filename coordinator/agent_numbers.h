// Numbers of an agent's messages: each has bounds, within which what is counted, added up and shown of them
// cannot overflow. A number beyond them is of a program that is broken, or of somebody who is no agent; who
// takes the message decides nothing by a part of it.
//
// Bounds go by a field's name, so that a new field has some on the day it comes: a count (from 0), unless its
// name says that it is a step, a rank, a time, or one of the values that may be anything.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// INVALID_ARGUMENT names the first field that is out of its bounds, with its value.
absl::Status CheckNumbers(const v1::AgentMessage& message);

}  // namespace fsdpd
