"""Variants of a causal language model: conversion, measurement and gates."""
