package nn

// matrix is a view of rows with a leading dimension: row i is data[i*stride:].
type matrix[F Float] struct {
	data   []F
	stride int
}

// mulT sets y to x·wᵀ, or adds it to y. y is m×n, x is m×k, w is n×k.
//
// Two rows of x and four of w are read together: eight sums run side by side, which keeps a scalar CPU busy.
func mulT[F Float](y, x, w matrix[F], m, n, k int, add bool) {
	i := 0
	for ; i+2 <= m; i += 2 {
		j := 0
		for ; j+4 <= n; j += 4 {
			mulT2x4(y, x, w, i, j, k, add)
		}
		for ; j < n; j++ {
			dot(y, x, w, i, j, k, add)
			dot(y, x, w, i+1, j, k, add)
		}
	}
	for ; i < m; i++ {
		for j := 0; j < n; j++ {
			dot(y, x, w, i, j, k, add)
		}
	}
}

func mulT2x4[F Float](y, x, w matrix[F], i, j, k int, add bool) {
	x0 := x.data[i*x.stride : i*x.stride+k]
	x1 := x.data[(i+1)*x.stride : (i+1)*x.stride+k][:len(x0)]
	w0 := w.data[j*w.stride : j*w.stride+k][:len(x0)]
	w1 := w.data[(j+1)*w.stride : (j+1)*w.stride+k][:len(x0)]
	w2 := w.data[(j+2)*w.stride : (j+2)*w.stride+k][:len(x0)]
	w3 := w.data[(j+3)*w.stride : (j+3)*w.stride+k][:len(x0)]
	var a0, a1, a2, a3, b0, b1, b2, b3 F
	for t, p := range x0 {
		q := x1[t]
		c0, c1, c2, c3 := w0[t], w1[t], w2[t], w3[t]
		a0 += F(p * c0)
		a1 += F(p * c1)
		a2 += F(p * c2)
		a3 += F(p * c3)
		b0 += F(q * c0)
		b1 += F(q * c1)
		b2 += F(q * c2)
		b3 += F(q * c3)
	}
	r := y.data[i*y.stride+j : i*y.stride+j+4]
	s := y.data[(i+1)*y.stride+j : (i+1)*y.stride+j+4]
	if !add {
		r[0], r[1], r[2], r[3] = a0, a1, a2, a3
		s[0], s[1], s[2], s[3] = b0, b1, b2, b3
		return
	}
	r[0] += a0
	r[1] += a1
	r[2] += a2
	r[3] += a3
	s[0] += b0
	s[1] += b1
	s[2] += b2
	s[3] += b3
}

// dot is one element of mulT.
func dot[F Float](y, x, w matrix[F], i, j, k int, add bool) {
	var sum F
	a, b := x.data[i*x.stride:i*x.stride+k], w.data[j*w.stride:j*w.stride+k]
	for t, p := range a {
		sum += F(p * b[t])
	}
	if add {
		sum += y.data[i*y.stride+j]
	}
	y.data[i*y.stride+j] = sum
}

// transpose sets dst, cols×rows, to the transpose of src, rows×cols.
func transpose[F Float](dst, src []F, rows, cols int) {
	const tile = 16
	for r0 := 0; r0 < rows; r0 += tile {
		r1 := min(r0+tile, rows)
		for c := 0; c < cols; c++ {
			d := dst[c*rows : c*rows+rows]
			for r := r0; r < r1; r++ {
				d[r] = src[r*cols+c]
			}
		}
	}
}

// gather copies n columns of src from column at into the dense dst.
func gather[F Float](dst, src []F, rows, stride, at, n int) {
	for t := 0; t < rows; t++ {
		copy(dst[t*n:t*n+n], src[t*stride+at:t*stride+at+n])
	}
}

// scatterAdd adds the dense src to n columns of dst from column at.
func scatterAdd[F Float](dst, src []F, rows, stride, at, n int) {
	for t := 0; t < rows; t++ {
		d, s := dst[t*stride+at:t*stride+at+n], src[t*n:t*n+n]
		for i, v := range s {
			d[i] += v
		}
	}
}
