// The headers that tests begin with: GoogleTest in addition to precompiled.h.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "precompiled.h"
