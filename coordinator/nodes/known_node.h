// Conversions of a node between the registry's view, the public API and the store (v1::Node). The store does
// not keep what an agent allows jobs to use: after a restart of the coordinator that is unknown until the
// agent registers again.
//
// Pure.
#pragma once

#include "base/clock.h"
#include "coordinator/nodes/node_registry.h"

namespace fsdpd {

// Returns "ready", "not-ready" (the agent may still reconnect to its ranks), "lost" or "left". Metrics and
// all clients use these words.
const char* StateOf(const NodeView& view);

v1::Node NodeOf(const NodeView& view, const Clock& clock);

// Builds the view of a stored node, which has no stream yet. `date` is the newest date in the store, or the
// clock's if that is later: if this coordinator's clock is behind its predecessor's, no node becomes older or
// younger than it is.
NodeView ViewOf(const v1::Node& node, absl::Time date, const Clock& clock);

}  // namespace fsdpd
