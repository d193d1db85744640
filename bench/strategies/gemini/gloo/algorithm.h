#pragma once

#include "bench/strategies/gemini/gloo/context.h"
