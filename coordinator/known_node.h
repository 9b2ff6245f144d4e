// A node as the public API and the store have it, and as the coordinator knows it. Of one that a life before
// knew, what its agent allows jobs is not stored: it says so again when it comes back.
//
// Pure.
#pragma once

#include "base/clock.h"
#include "coordinator/node_registry.h"

namespace fsdpd {

// "ready", "not-ready" (its agent may reconnect to its ranks), "lost" or "left": one word for each, on all
// screens and in metrics.
const char* StateOf(const NodeView& view);

v1::Node NodeOf(const NodeView& view, const Clock& clock);

// Of a stored one, which has no stream now. `date`: of the newest that is stored, or the clock's if that is
// later, so that a coordinator whose clock is behind that of the one before makes no node older or younger
// than it is.
NodeView ViewOf(const v1::Node& node, absl::Time date, const Clock& clock);

}  // namespace fsdpd
