// STARLING_WIDE: a function whose loops are compiled for AVX-512, AVX2 and plain processors; the
// loader picks the widest version that the machine can run.
//
// All give the same bits: without fused multiply-add (-ffp-contract=off) a vector lane rounds
// exactly as a scalar does. Sanitizers do not go with such functions.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STARLING_WIDE
#endif
#endif
#ifndef STARLING_WIDE
#define STARLING_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define STARLING_WIDE
#endif
