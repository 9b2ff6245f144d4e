// Included by ProcessGroupGloo.hpp, which uses nothing of it.
#pragma once
