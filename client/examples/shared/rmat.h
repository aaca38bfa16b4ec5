/*
 * rmat.h - the edges of R-MAT graphs (Chakrabarti, Zhan, Faloutsos 2004) with the probabilities of Graph500: few vertices have most
 * of the edges, as in social networks. Needs a mix(), which whoever includes this has.
 */
#ifndef EXAMPLE_RMAT_EDGES_H
#define EXAMPLE_RMAT_EDGES_H

/* Another name for vertex v of 2^scale, so that those with many edges are anywhere. */
static inline uint32_t scramble(uint64_t v, unsigned scale)
{
	uint64_t mask = ((uint64_t)1 << scale) - 1;

	for (int i = 0; i < 2; i++) {
		v = (v * 0x9e3779b97f4a7c15u + 0x7f4a7c15) & mask;
		v ^= v >> (scale + 1) / 2;
	}
	return (uint32_t)v;
}

/* Edge i of a graph; always the same. */
static inline void rmat_edge(uint64_t i, unsigned scale, uint32_t *from, uint32_t *to)
{
	uint64_t u = 0, v = 0, random = 0;

	for (unsigned level = 0; level < scale; level++) {
		unsigned byte;

		if (level % 8 == 0)
			random = mix(i * 4 + level / 8);
		byte = random >> (level % 8 * 8) & 0xff;
		/* Of the four quarters of the matrix: 0.57, 0.19, 0.19, 0.05, in 256ths. */
		u = u << 1 | (byte >= 195);
		v = v << 1 | ((byte >= 146 && byte < 195) || byte >= 244);
	}
	*from = scramble(u, scale);
	*to = scramble(v, scale);
}

#endif
