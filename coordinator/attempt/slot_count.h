// Free slots per node: the slots that agents offer minus those that attempts hold. An attempt holds its slots
// until its node has confirmed that no rank of it is left, even after its job has ended, so that two jobs
// never share a device.
//
// Pure.
#pragma once

#include <absl/types/span.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/attempt/attempt_facts.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/schedule/placer.h"

namespace fsdpd {

// The slots of a node as if nothing ran there.
NodeSlots IdleSlots(const NodeView& node);
// Connected nodes only.
std::vector<NodeSlots> IdleSlots(const std::vector<NodeView>& nodes);

std::vector<NodeSlots> CountSlots(const std::vector<const NodeView*>& nodes,
                                  const std::map<AttemptRef, AttemptFacts>& attempts);
// A node and held devices there.
using HeldDevices = std::pair<std::string_view, absl::Span<const int>>;
// The free slots of each node as in CountSlots(). Every tick calls it for thousands of nodes.
std::map<std::string, int> CountFree(const std::vector<const NodeView*>& nodes,
                                     const std::vector<HeldDevices>& held);

// Removes the slots of `facts` from `slots`. REQUIRES: they were free.
void TakeSlots(const AttemptFacts& facts, std::vector<NodeSlots>* slots);

}  // namespace fsdpd
