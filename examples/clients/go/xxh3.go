package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
)

// The secret of XXH3, https://github.com/Cyan4973/xxHash.
const secretHex = "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
	"b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
	"a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb" +
	"170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"

const (
	p1  = 0x9e3779b185ebca87
	p2  = 0xc2b2ae3d27d4eb4f
	p3  = 0x165667b19e3779f9
	mx1 = 0x165667919e3779f9
	mx2 = 0x9fb21c651e98df25
)

var secret, _ = hex.DecodeString(secretHex)

func word(data []byte, at int) uint64 { return binary.LittleEndian.Uint64(data[at:]) }

func folded(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func avalanche(h uint64) uint64 {
	h = (h ^ h>>37) * mx1
	return h ^ h>>32
}

func avalancheOfShort(h uint64) uint64 {
	h = (h ^ h>>33) * p2
	h = (h ^ h>>29) * p3
	return h ^ h>>32
}

// xxh3 returns the 64-bit XXH3 with seed 0 of at most 240 bytes: the hash that divides keys into groups.
func xxh3(data []byte) (uint64, error) {
	length := len(data)
	n := uint64(length)
	half := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(data[at:])) }
	mix := func(at, by int) uint64 {
		return folded(word(data, at)^word(secret, by), word(data, at+8)^word(secret, by+8))
	}
	switch {
	case length == 0:
		return avalancheOfShort(word(secret, 56) ^ word(secret, 64)), nil
	case length <= 3:
		combined := uint32(data[0])<<16 | uint32(data[length>>1])<<24 | uint32(data[length-1]) | uint32(length)<<8
		flip := binary.LittleEndian.Uint32(secret) ^ binary.LittleEndian.Uint32(secret[4:])
		return avalancheOfShort(uint64(combined ^ flip)), nil
	case length <= 8:
		h := (half(length-4) + half(0)<<32) ^ word(secret, 8) ^ word(secret, 16)
		h = (h ^ bits.RotateLeft64(h, 49) ^ bits.RotateLeft64(h, 24)) * mx2
		h = (h ^ (h>>35 + n)) * mx2
		return h ^ h>>28, nil
	case length <= 16:
		low := word(data, 0) ^ word(secret, 24) ^ word(secret, 32)
		high := word(data, length-8) ^ word(secret, 40) ^ word(secret, 48)
		return avalanche(n + bits.ReverseBytes64(low) + high + folded(low, high)), nil
	case length > 240:
		return 0, fmt.Errorf("expected a key of at most 240 bytes, got %d: use a library of XXH3", length)
	}
	sum := n * p1
	if length <= 128 {
		for i := (length - 1) >> 5; i >= 0; i-- {
			sum += mix(16*i, 32*i) + mix(length-16*(i+1), 32*i+16)
		}
		return avalanche(sum), nil
	}
	for i := 0; i < 8; i++ {
		sum += mix(16*i, 16*i)
	}
	sum = avalanche(sum) + mix(length-16, 119)
	for i := 8; i < length>>4; i++ {
		sum += mix(16*i, 16*(i-8)+3)
	}
	return avalanche(sum), nil
}
