// Which slots of which nodes are free: what agents offer minus what attempts hold. An attempt holds its slots
// until its node said that nothing is left of it, also when its job has ended, so that two jobs never meet on
// a device.
//
// Pure.
#pragma once

#include <absl/types/span.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/attempt_facts.h"
#include "coordinator/node_registry.h"
#include "coordinator/placer.h"

namespace fsdpd {

// As if nothing ran there.
NodeSlots IdleSlots(const NodeView& node);
// Of the connected ones.
std::vector<NodeSlots> IdleSlots(const std::vector<NodeView>& nodes);

std::vector<NodeSlots> CountSlots(const std::vector<const NodeView*>& nodes,
                                  const std::map<AttemptRef, AttemptFacts>& attempts);
// A node and devices there.
using HeldDevices = std::pair<std::string_view, absl::Span<const int>>;
// How many slots of each node are free, as CountSlots() counts them, and nothing else of it: this is done in
// each tick, and there are thousands of nodes.
std::map<std::string, int> CountFree(const std::vector<const NodeView*>& nodes,
                                     const std::vector<HeldDevices>& held);

// As they are counted once `facts` holds its own too. REQUIRES: they were free.
void TakeOff(const AttemptFacts& facts, std::vector<NodeSlots>* slots);

}  // namespace fsdpd
